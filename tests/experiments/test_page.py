"""index.html: one file, well formed, nothing fetched, every id its own; and table.md beside it."""

import dataclasses
import json
import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from jaxformer.experiments.formats import Table
from jaxformer.experiments.page import Drawing, Part, make_page
from jaxformer.experiments.publish import write_report
from tests.experiments.made_results import made_plan

VOID = {"meta", "br", "hr", "img", "link", "input"}


class Reader(HTMLParser):
    """Checks that tags close in order, and collects ids, links and the text of elements."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.open, self.ids, self.links, self.tags, self.texts = [], [], [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        if tag not in VOID:
            self.open.append(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(value)
            if name in ("src", "href", "xlink:href"):
                self.links.append(value)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if data.strip():
            self.texts.append((self.open[-1], data.strip()))


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    path = tmp_path_factory.mktemp("page")
    write_report(path, made_plan(path))
    return path


def test_the_page_is_one_well_formed_file(out):
    text = (out / "index.html").read_text()
    page = Reader(text)
    assert len(page.ids) == len(set(page.ids))
    inside = {link.removeprefix("#") for link in page.links if link.startswith("#")}
    assert inside <= set(page.ids)
    assert set(re.findall(r"url\(#([^)]+)\)", text)) <= set(page.ids)
    beside = {link for link in page.links if not link.startswith("#")}
    assert beside == {"results.csv", "results.json", "table.md"}
    assert "script" not in page.tags
    assert not re.search(r"@import|url\((?!#)", text)
    assert "prefers-color-scheme: dark" in text


def test_the_page_shows_the_tables_the_figures_and_the_protocol(out):
    page = Reader((out / "index.html").read_text())
    assert page.tags.count("svg") == 3  # exact match, without the end, loss
    folded = [text for tag, text in page.texts if tag == "summary"]
    shown = [text for tag, text in page.texts if tag == "h3"]
    assert "Exact match, end token included (%), all seeds" in shown
    assert "Every seed: exact match, end token included (%, Wilson's 95 % interval)" in folded
    cells = [text for tag, text in page.texts if tag == "td"]
    assert {"id_failed", "57.5", "85.0 [80.0, 90.0]"} <= set(cells)
    pairs = [(tag, text) for tag, text in page.texts if tag in ("dt", "dd")]
    assert pairs[:2] == [("dt", "length"), ("dd", "symbols")]
    titles = re.findall(r"^## (.*)$", (out / "table.md").read_text(), re.MULTILINE)
    assert {t for t in titles if t != "Protocol"} <= {*shown, *folded}


def test_figures_take_the_colours_of_the_page(out):
    text = (out / "index.html").read_text()
    assert "currentColor" in text
    svg = text[text.index("<svg") : text.index("</svg>") + 6]
    assert ElementTree.fromstring(svg).get("role") == "img"
    assert "#1c1c1c" not in svg
    assert "#fefefe" not in svg
    assert "#0072b2" in svg.lower()


def test_texts_are_escaped():
    table = Table("a < b", [{"arm": "<s> & </s>"}])
    part = Part("<task>", [Drawing('"x"', '<?xml?><svg id="a"><g/></svg>', True)], [table])
    page = Reader(make_page("<b>", "1 < 2", "", [part], {"k<": "v>"}, {}))
    assert ("td", "<s> & </s>") in page.texts
    assert ("h2", "<task>") in page.texts
    assert page.ids == ["f0-a"]


def test_a_selection_out_of_distribution_stamps_everything(tmp_path):
    plan = made_plan(tmp_path, selected_by="ood")
    words = "Checkpoints were selected out of distribution"
    assert words in write_report(tmp_path, plan).text
    assert words in (tmp_path / "table.md").read_text()
    assert words in (tmp_path / "index.html").read_text()
    assert json.loads((tmp_path / "results.json").read_text())["stamp"].startswith(words)
    assert ",ood," in (tmp_path / "results.csv").read_text().splitlines()[1]


def test_results_json_has_rows_protocol_and_statistics(out):
    found = json.loads((out / "results.json").read_text(), parse_constant=pytest.fail)
    assert found["stamp"] == ""
    assert found["protocol"]["begin token"] == "yes"
    assert found["versions"] == {"python": "3.11"}
    assert len(found["rows"]) == 15 + 4  # lengths of four runs, and the validation split of each
    [line] = [
        line
        for line in found["by_length"]
        if (line["arm"], line["metric"], line["length"]) == ("none", "exact_match", 8)
    ]
    assert line["seeds"] == 2
    assert line["std"] == pytest.approx(0.2 / 2**0.5)
    assert [line[k] for k in ("mean", "min", "max", "iqm", "low", "high")] == pytest.approx(
        [0.3, 0.2, 0.4, 0.3, 0.2, 0.4]
    )


def test_results_csv_has_the_columns_in_order(out):
    header, first, *_ = (out / "results.csv").read_text().splitlines()
    assert header == (
        "task,model.position.kind,seed,data_seed,split,positions,length,bucket,n_examples,"
        "exhaustive,exact_match,exact_match_no_eos,nll,untrained_ids,untrained_distances,loss,"
        "step,selected_by,config_hash"
    )
    assert (
        first == "copy,none,0,0,test,trained,2,id,0,True,1.0,1.0,0.0,0.0,0.0,,800,last,copy-none0"
    )


def test_lengths_that_nothing_was_tested_at_are_named(tmp_path):
    plan = made_plan(tmp_path)
    plan = dataclasses.replace(plan, protocol=plan.protocol | {"test lengths": "2:8:2,47"})
    assert "No tests at 47: no such inputs exist" in write_report(tmp_path, plan).text

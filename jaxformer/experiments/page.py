"""index.html: a sweep as one file that opens from the disk, figures and tables within it.

Nothing is fetched and nothing runs: figures are inline SVG in the page's own ink, so that they are
as legible in dark mode, and what is long is folded by <details>.
"""

import html
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from jaxformer.experiments.figure import INK, PAPER
from jaxformer.experiments.formats import NONE, Line, Table

STYLE = """
:root { color-scheme: light dark; --ink: #1c1c1c; --paper: #fefefe; --faint: #6b6b6b;
  --rule: #d8d8d8; --band: #f4f4f2; --alarm: #a33b00; }
@media (prefers-color-scheme: dark) { :root { --ink: #e8e8e6; --paper: #17181a; --faint: #a3a3a3;
  --rule: #3a3b3e; --band: #212225; --alarm: #ff9d66; } }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
main { max-width: 72rem; margin: 0 auto; padding: 1.5rem 1.25rem 4rem; }
h1 { font-size: 1.5rem; margin: 0 0 .3rem; overflow-wrap: anywhere; }
h2 { font-size: 1.2rem; margin: 2.4rem 0 .6rem; border-bottom: 1px solid var(--rule); }
h3, summary { font-size: 1rem; font-weight: 600; margin: 1.4rem 0 .4rem; }
summary { cursor: pointer; }
details > summary + * { margin-top: .4rem; }
p.note { color: var(--faint); margin: .4rem 0 0; max-width: 60rem; font-size: .9rem; }
p.stamp { border: 2px solid var(--alarm); color: var(--alarm); font-weight: 700;
  padding: .6rem .9rem; }
figure { margin: .8rem 0; }
figure svg { width: 100%; height: auto; color: var(--ink); }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .9rem; }
th, td { padding: .25rem .7rem; text-align: right; white-space: nowrap;
  border-bottom: 1px solid var(--rule); }
th { color: var(--faint); font-weight: 600; }
th.word, td.word { text-align: left; }
td:first-child, th:first-child { position: sticky; left: 0; background: var(--paper); }
tbody tr:hover td { background: var(--band); }
td.flag { color: var(--alarm); font-weight: 600; text-align: left; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .1rem 1.2rem; margin: 0;
  background: var(--band); padding: .8rem 1rem; }
dt { color: var(--faint); }
dd { margin: 0; overflow-wrap: anywhere; }
@media (max-width: 40rem) { dl { display: block; } }
@media print { main { max-width: none; } }
"""


class Drawing(NamedTuple):
    """A figure as the text of an SVG file, with a caption."""

    caption: str
    svg: str
    main: bool


class Part(NamedTuple):
    """A section of the page."""

    title: str
    drawings: Sequence[Drawing]
    tables: Sequence[Table]


def make_page(
    title: str,
    status: str,
    stamp: str,
    parts: Sequence[Part],
    protocol: Mapping[str, str],
    versions: Mapping[str, str],
) -> str:
    """The whole page. `stamp` is a warning across the top, '' for none."""
    body = [f"<h1>{_text(title)}</h1>", f"<p>{_text(status)}</p>"]
    if stamp:
        body.append(f'<p class="stamp" role="alert">{_text(stamp)}</p>')
    number = 0
    for part in parts:
        body.append(f"<section>\n<h2>{_text(part.title)}</h2>")
        for drawing in part.drawings:
            body.append(_folded(drawing.main, drawing.caption, _figure(drawing, number)))
            number += 1
        for table in part.tables:
            note = f'<p class="note">{_text(table.note)}</p>' if table.note else ""
            body.append(_folded(table.main, table.title, _table(table.lines) + note))
        body.append("</section>")
    body.append(f"<section>\n<h2>Protocol</h2>\n{_list(protocol)}</section>")
    body.append(_folded(False, "Versions", _list(versions)))
    body.append(
        '<p class="note">Beside this page: <a href="results.csv">results.csv</a> (a row a seed and '
        'length), <a href="results.json">results.json</a>, <a href="table.md">table.md</a>.</p>'
    )
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{_text(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(body)
        + "\n</main>\n</body>\n</html>\n"
    )


def _text(text: str) -> str:
    return html.escape(text)


def _folded(is_open: bool, title: str, content: str) -> str:
    if is_open:
        return f"<h3>{_text(title)}</h3>\n{content}"
    return f"<details>\n<summary>{_text(title)}</summary>\n{content}\n</details>"


def _figure(drawing: Drawing, number: int) -> str:
    """The drawing in the page's colours; its ids are its own, as many figures share a page."""
    svg = drawing.svg[drawing.svg.index("<svg") :]
    svg = svg.replace(INK, "currentColor").replace(PAPER, "none")
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'\bid="', f'id="f{number}-', svg)
    svg = re.sub(r'href="#', f'href="#f{number}-', svg)
    svg = re.sub(r"url\(#", f"url(#f{number}-", svg)
    label = f'<svg role="img" aria-label="{_text(drawing.caption)}" '
    return f"<figure>{label}{svg.removeprefix('<svg ').rstrip()}</figure>"


def _table(lines: Sequence[Line]) -> str:
    names = list(dict.fromkeys(name for line in lines for name in line))
    words = {name for name in names if all(_is_word(line.get(name, "")) for line in lines)}
    kinds = {name: ' class="word"' if name in words else "" for name in names}
    head = "".join(f'<th scope="col"{kinds[name]}>{_text(name)}</th>' for name in names)
    rows = []
    for line in lines:
        cells = []
        for name in names:
            text = line.get(name, "")
            kind = ' class="flag"' if "id_failed" in text else kinds[name]
            cells.append(f"<td{kind}>{_text(text)}</td>")
        rows.append(f"<tr>{''.join(cells)}</tr>")
    return (
        f'<div class="wide"><table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n'
        + "\n".join(rows)
        + "\n</tbody></table></div>"
    )


def _is_word(text: str) -> bool:
    return not text.lstrip("+-[")[:1].isdigit() and text != NONE


def _list(values: Mapping[str, str]) -> str:
    items = "\n".join(f"<dt>{_text(k)}</dt><dd>{_text(v)}</dd>" for k, v in values.items())
    return f"<dl>\n{items}\n</dl>"

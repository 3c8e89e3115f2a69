"""BLEU and chrF of a sequence-to-sequence run, greedy and by beam search, with their signatures."""

import dataclasses
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from flax import nnx

from jaxformer.config import RunConfig, Section
from jaxformer.data.columns import read_parallel
from jaxformer.data.packing import RowSource
from jaxformer.data.tokenizers import Tokenizer
from jaxformer.errors import UserError
from jaxformer.evaluation import report
from jaxformer.generation import LengthPenalty, translate

BLEU, CHRF = "bleu", "chrf"  # a suite's evaluator bleu stands for both
TITLES = {BLEU: "BLEU", CHRF: "chrF"}


@dataclasses.dataclass(frozen=True)
class TranslationConfig(Section):
    """What is translated, and how; configs/eval/translation.py says what each field means."""

    prefix: ClassVar[str] = "suite.translation"

    source_path: str = ""
    target_path: str = ""
    beam_size: int = 4
    length_penalty: str = "gnmt"
    alpha: float = 0.6
    extra_tokens: int = 50

    @property
    def penalty(self) -> LengthPenalty:
        return LengthPenalty(self.length_penalty, self.alpha)

    def check(self) -> None:
        for name, least in (("beam_size", 1), ("extra_tokens", 0)):
            if (value := getattr(self, name)) < least:
                mend = f"give {least} or more"
                raise UserError(f"suite.translation.{name}", f"is {value}", mend)
        if bool(self.source_path) != bool(self.target_path):
            mend = "test pairs are in two files: give both or neither"
            raise UserError("suite.translation.target_path", "or source_path is empty", mend)
        try:
            _ = self.penalty
        except UserError as error:
            raise UserError(f"suite.translation.{error.where}", error.what, error.mend)


class Pairs(NamedTuple):
    """Sources and their reference translations."""

    sources: list[str]
    references: list[str]


@dataclasses.dataclass(frozen=True)
class Translations:
    """What was translated by each way of decoding, and how well."""

    pairs: Pairs
    texts: dict[str, list[str]]  # 'greedy', 'beam 4' -> a translation of each source
    scores: dict[str, dict[str, float]]  # the same -> metric -> 0 to 100
    seconds: dict[str, float]
    signatures: dict[str, str]  # by metric

    def records(self) -> list[dict[str, Any]]:
        """Rows of results.csv."""
        return [
            {
                "split": "translation",
                "length": "",
                "metric": f"{metric} {name}",
                "value": score,
                "low": "",
                "high": "",
                "weight": float(len(self.pairs.sources)),
            }
            for name, scores in self.scores.items()
            for metric, score in scores.items()
        ]

    def table(self) -> str:
        rows = [
            {
                "decoding": name,
                **{TITLES[metric]: f"{score:.2f}" for metric, score in scores.items()},
                "sentences": f"{len(self.pairs.sources):,}",
                "seconds": f"{self.seconds[name]:.1f}",
            }
            for name, scores in self.scores.items()
        ]
        return report.markdown(rows) + describe_signatures(self.signatures)

    def write(self, path: Path) -> Path:
        """A block for each sentence: source, reference, what each way of decoding gave."""
        columns = {"source": self.pairs.sources, "reference": self.pairs.references} | self.texts
        width = max(map(len, columns)) + 2
        blocks = [
            "".join(
                f"{name:<{width}}{' '.join(text.split())}\n"
                for name, text in zip(columns, sentence, strict=True)
            )
            for sentence in zip(*columns.values(), strict=True)
        ]
        return report.write_atomic(path, "\n".join(blocks))


def check_translates(cfg: RunConfig) -> None:
    """Raises UserError for a run whose model does not translate."""
    if cfg.model.architecture != "encoder_decoder":
        what = f"has {BLEU}, but model.architecture = {cfg.model.architecture}"
        raise UserError("suite.evaluators", what, "only an encoder_decoder translates")
    if not cfg.objective.has_pairs:
        what = f"has {BLEU}, but objective.kind = {cfg.objective.kind}"
        raise UserError("suite.evaluators", what, "only a run of seq2seq translates")


def find_pairs(
    suite: TranslationConfig, tokenizer: Tokenizer, validation: RowSource, max_rows: int
) -> Pairs:
    """The pairs of the suite's files, or else of the validation rows (0: of all)."""
    if suite.source_path:
        paths = [Path(os.path.expanduser(p)) for p in (suite.source_path, suite.target_path)]
        pairs = list(read_parallel(paths[:1], paths[1:]))
        if not pairs:
            raise UserError(suite.source_path, "is empty", "give sentences to translate")
        return Pairs([source for source, _ in pairs], [target for _, target in pairs])
    sources, references = [], []
    for index in range(min(len(validation), max_rows or len(validation))):
        row = validation.row(0, index)
        for segment in range(1, int(row["segment_ids"].max()) + 1):  # packed rows have several
            sources.append(row["source"][row["source_segment_ids"] == segment])
            references.append(row["targets"][row["segment_ids"] == segment])
    return Pairs(list(map(tokenizer.decode, sources)), list(map(tokenizer.decode, references)))


def evaluate_translations(
    model: nnx.Module, tokenizer: Tokenizer, pairs: Pairs, suite: TranslationConfig, cfg: RunConfig
) -> Translations:
    """Translates greedily and, for a beam wider than 1, by beam search."""
    texts, seconds, scores, signatures = {}, {}, {}, {}
    for beam_size in sorted({1, suite.beam_size}):
        name = "greedy" if beam_size == 1 else f"beam {beam_size}"
        start = time.perf_counter()
        texts[name] = translate(
            model,
            tokenizer,
            pairs.sources,
            beam_size=beam_size,
            length_penalty=suite.penalty,
            extra_tokens=suite.extra_tokens,
            batch_size=cfg.eval.batch_size,
            add_bos=cfg.data.add_bos,
            add_eos=cfg.data.add_eos,
        )
        seconds[name] = time.perf_counter() - start
        found = text_metrics(texts[name], pairs.references)
        scores[name] = {metric: score for metric, (score, _) in found.items()}
        signatures = {metric: signature for metric, (_, signature) in found.items()}
    return Translations(pairs, texts, scores, seconds, signatures)


def text_metrics(texts: list[str], references: list[str]) -> dict[str, tuple[float, str]]:
    """sacreBLEU's corpus BLEU and chrF (Popović 2015) with their signatures (Post 2018).

    Scores are 0 to 100, of one reference for each text.
    """
    from sacrebleu.metrics.bleu import BLEU as Bleu  # here: only texts with references need it
    from sacrebleu.metrics.chrf import CHRF as ChrF

    return {
        name: (metric.corpus_score(texts, [references]).score, metric.get_signature().format())
        for name, metric in ((BLEU, Bleu()), (CHRF, ChrF()))
    }


def describe_signatures(signatures: Mapping[str, str]) -> str:
    """Lines below a table."""
    lines = (f"sacreBLEU {TITLES[name]}: {text}\n" for name, text in signatures.items())
    return "\n" + "".join(lines)

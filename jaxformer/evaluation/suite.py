"""Evaluation suites: the typed form of the files in configs/eval/."""

import dataclasses
import importlib.util
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

from jaxformer.config import DataConfig, Section
from jaxformer.errors import UserError
from jaxformer.evaluation.evaluators import EVALUATORS
from jaxformer.evaluation.lengths import parse_lengths
from jaxformer.evaluation.translation import BLEU, TranslationConfig
from jaxformer.generation import parse_sampler

SUITES = Path(__file__).parents[2] / "configs" / "eval"
DEFAULT_SUITES = {
    "agreement": "agreement",
    "task": "lengths",
}  # data.source -> suite, where it is not 'text'
OBJECTIVE_SUITES = {  # objective.kind -> suite
    "seq2seq": "translation",
    "masked_lm": "masked_lm",
    "span_corruption": "masked_lm",
    "sequence_classification": "classification",
    "token_classification": "classification",
}


@dataclasses.dataclass(frozen=True)
class SamplesConfig(Section):
    """Text to continue, and how."""

    prompts: tuple[str, ...]
    count: int
    max_new_tokens: int
    sampler: str


@dataclasses.dataclass(frozen=True)
class SuiteConfig(Section):
    """What to evaluate; the files in configs/eval/ say what each field means."""

    prefix: ClassVar[str] = "suite"

    evaluators: tuple[str, ...]
    lengths: str
    num_examples: int
    seed: int
    samples: SamplesConfig
    translation: TranslationConfig

    @classmethod
    def from_config_dict(cls, values: Mapping[str, Any]) -> Self:
        """The section `translation` may be absent: most suites have nothing to translate."""
        defaults = {"translation": TranslationConfig().to_dict()}
        return super().from_config_dict(defaults | dict(values.items()))

    def check(self) -> None:
        for name in self.evaluators:
            if name not in EVALUATORS and name != BLEU:
                mend = f"choose from {', '.join((*EVALUATORS, BLEU))}"
                raise UserError("suite.evaluators", f"has {name!r}", mend)
        if self.lengths:
            parse_lengths(self.lengths)
        if self.num_examples < 0:
            mend = "give 0 (a task: 1,000) or more"
            raise UserError("suite.num_examples", f"is {self.num_examples}", mend)
        if self.samples.count < 0:
            raise UserError("suite.samples.count", f"is {self.samples.count}", "give 0 or more")
        if self.samples.count and self.samples.max_new_tokens < 1:
            what = f"is {self.samples.max_new_tokens}"
            raise UserError("suite.samples.max_new_tokens", what, "give 1 or more")
        parse_sampler(self.samples.sampler)
        self.translation.check()


def load_suite(name: str, data: DataConfig, objective: str = "causal_lm") -> SuiteConfig:
    """Reads configs/eval/NAME.py, or the file itself where NAME ends in .py.

    '' stands for the suite of the run's objective, or else of its data source. Raises UserError.
    """
    name = name or OBJECTIVE_SUITES.get(objective) or DEFAULT_SUITES.get(data.source, "text")
    path = Path(name) if name.endswith(".py") else SUITES / f"{name}.py"
    if not path.is_file():
        known = ", ".join(sorted(file.stem for file in SUITES.glob("*.py")))
        raise UserError("suite", f"has no file {os.fspath(path)}", f"choose from {known}")
    spec = importlib.util.spec_from_file_location(f"jaxformer_suite_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        values = module.get_config()
    except Exception as error:
        what = f"cannot be read: {type(error).__name__}: {error}"
        raise UserError(os.fspath(path), what, "it defines get_config() -> ConfigDict") from error
    return SuiteConfig.from_config_dict(values)

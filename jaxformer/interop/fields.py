"""Reading a config.json strictly: what a family can say and this code cannot is refused by name."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from jaxformer.errors import UserError

# What tells nothing of the network's function: texts about it, training, generation, labels.
ABOUT = frozenset(
    """
    _attn_implementation _name_or_path add_bias_logits add_final_layer_norm architectures
    attn_implementation auto_map bos_token_id cache_implementation chunk_size_feed_forward
    classif_dropout classifier_dropout cls_token_id decoder_start_token_id do_sample dtype
    early_stopping eos_token_id extra_pos_embeddings finetuning_task
    force_bos_token_to_be_generated forced_bos_token_id forced_eos_token_id
    gradient_checkpointing id2label init_std initializer_factor initializer_range
    is_encoder_decoder label2id length_penalty mask_token_id max_length min_length model_type
    n_ctx no_repeat_ngram_size normalize_embedding num_beams num_labels output_attentions
    output_hidden_states output_past pad_token_id prefix pretraining_tp problem_type
    reorder_and_upcast_attn return_dict sep_token_id slow_but_exact static_position_embeddings
    summary_activation summary_first_dropout summary_proj_to_labels summary_type
    summary_use_proj task_specific_params temperature tokenizer_class top_k top_p torch_dtype
    transformers_version unk_token_id use_cache
    """.split()  # noqa: SIM905 - a list of names
)


class Fields:
    """The fields of a config.json; `null` counts as absent. `section` is where they stand in it."""

    def __init__(self, path: Path, values: Mapping[str, Any], section: str = ""):
        self.path, self.values, self._section = path, values, section
        self._seen: set[str] = set()

    def get(self, name: str, default: Any = None) -> Any:
        """The value as it stands there, else the family's default."""
        self._seen.add(name)
        value = self.values.get(name)
        return default if value is None else value

    def integer(self, name: str, default: int | None = None) -> int:
        value = self._typed(name, default, int, "a whole number")
        if abs(value) >= 2**31:
            self.refuse(name, f"is {value:.3g}", "it takes a whole number below 2^31")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        value = self._typed(name, default, (int, float), "a number")
        return float(value)

    def flag(self, name: str, default: bool | None = None) -> bool:
        value = self.get(name, default)
        if not isinstance(value, bool):
            self.refuse(name, f"is {value!r}", "it takes true or false")
        return value

    def choice(self, name: str, choices: Mapping[str, str], default: str | None = None) -> str:
        """What a value is called here."""
        value = self.get(name, default)
        if not isinstance(value, str) or value not in choices:
            mend = f"it cannot be read: jaxformer has {', '.join(choices)}"
            self.refuse(name, f"is {value!r}" if value is not None else "is missing", mend)
        return choices[value]

    def only(self, name: str, *allowed: Any) -> None:
        """Refuses all values but these, of which the first is the default."""
        value = self.get(name, allowed[0])
        if value not in allowed:
            told = " or ".join(json.dumps(a) for a in allowed)
            self.refuse(name, f"is {json.dumps(value)}", f"it cannot be read: jaxformer has {told}")

    def equal(self, name: str, other: str) -> None:
        """Refuses a field that is another number than that of `other`, if both are there."""
        value, wanted = self.get(name), self.get(other)
        if value is not None and wanted is not None and value != wanted:
            mend = "it cannot be read: jaxformer has one number for both"
            self.refuse(name, f"is {value} while {other} is {wanted}", mend)

    def section(self, name: str) -> "Fields | None":
        """Fields in a field."""
        value = self.get(name)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            self.refuse(name, f"is {value!r}", "it holds fields of its own")
        return Fields(self.path, value, f"{self._section}{name}.")

    def unread(self, besides: Iterable[str] = ()) -> list[str]:
        """The names of fields that nothing has read."""
        return sorted(self.values.keys() - self._seen - ABOUT - set(besides))

    def refuse(self, name: str, what: str, mend: str) -> NoReturn:
        raise UserError(f"{self.path}: {self._section}{name}", what, mend)

    def _typed(self, name: str, default: Any, kind: Any, told: str) -> Any:
        value = self.get(name, default)
        if value is None:
            self.refuse(name, "is missing", f"it takes {told}")
        if isinstance(value, bool) or not isinstance(value, kind):
            self.refuse(name, f"is {value!r}", f"it takes {told}")
        return value


def read_json(path: Path) -> dict[str, Any]:
    """The content of a JSON file that holds an object; raises UserError."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise UserError(str(path), f"cannot be read ({reason})", "copy it once more") from error
    if not isinstance(values, dict):
        raise UserError(str(path), "holds no fields", "copy it once more")
    return values

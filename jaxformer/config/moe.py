"""Fields of layers whose feed-forward network is a mixture of experts."""

import dataclasses
from typing import Any, ClassVar, Literal

from jaxformer.config.section import Section, at_least, refuse, unread

# What base.py has: without experts nothing reads another value.
UNUSED: dict[str, Any] = {
    "top_k": 2,
    "every": 1,
    "d_ff": 0,
    "shared_d_ff": 0,
    "capacity_factor": 0.0,
    "normalize_top_k": True,
    "balance_weight": 0.01,
    "balance_over": "batch",
    "z_weight": 0.0,
    "jitter": 0.0,
}


@dataclasses.dataclass(frozen=True)
class MoeConfig(Section):
    prefix: ClassVar[str] = "model.moe"

    num_experts: int
    top_k: int
    every: int
    d_ff: int
    shared_d_ff: int
    capacity_factor: float
    normalize_top_k: bool
    balance_weight: float
    balance_over: Literal["batch", "row"]
    z_weight: float
    jitter: float

    def check(self) -> None:
        where = "model.moe"
        at_least(where, self, 0, "num_experts", "d_ff", "shared_d_ff", "capacity_factor")
        at_least(where, self, 0, "balance_weight", "z_weight")
        if not self.num_experts:
            for name, default in UNUSED.items():
                value = getattr(self, name)
                is_read = value == default
                if not is_read:
                    what = f"is set to {value!r} but never read"
                    mend = f"only model.moe.num_experts > 0 reads it: set it to {default!r}"
                    refuse(f"{where}.{name}", what, mend)
            return
        at_least(where, self, 2, "num_experts")
        at_least(where, self, 1, "top_k", "every")
        if self.top_k > self.num_experts:
            what = f"{self.top_k} is more than num_experts = {self.num_experts}"
            refuse(f"{where}.top_k", what, "a token goes to each expert once at most")
        if self.normalize_top_k and self.top_k == 1:
            mend = "the one weight would be 1 and the router never learn: set it to false"
            refuse(f"{where}.normalize_top_k", "is true while top_k = 1", mend)
        if not 0 <= self.jitter < 1:
            refuse(f"{where}.jitter", f"is {self.jitter}", "give a share from 0 to below 1")
        by_row = self.balance_over == "row" and "row"
        unread(f"{where}.balance_over", by_row, self.balance_weight > 0, "balance_weight > 0")

    def check_layers(self, num_layers: int, scan_layers: bool, d_ff: int) -> None:
        """Raises UserError where the layers of the model do not fit; `num_layers`: the fewest."""
        if not self.num_experts:
            return
        if self.every > num_layers:
            what = f"is {self.every}, the model has {num_layers} layers"
            refuse("model.moe.every", what, "lower it: no layer would have experts")
        if scan_layers and self.every > 1:
            mend = "set it to false: scanned layers are equal"
            refuse("model.scan_layers", f"is true while model.moe.every = {self.every}", mend)
        unread(
            "model.d_ff", d_ff, self.every > 1 or not self.d_ff, "model.moe.d_ff = 0 or every > 1"
        )

"""What the loop tells of its steps: metrics.jsonl, the progress line, the hash chain."""

import math
import signal
from collections.abc import Mapping
from typing import Any, Protocol

import jax

from jaxformer.config import RunConfig
from jaxformer.errors import TrainingFailed
from jaxformer.training.chain import Chain, as_hex, as_int
from jaxformer.training.clock import Clock
from jaxformer.training.metrics import Meter, MetricsWriter


class Progress(Protocol):
    """Shows a run: called after every step with the values known so far."""

    def update(self, step: int, metrics: dict[str, Any]) -> None: ...


class Log:
    """Reports each step once the next has been started, so that devices never wait for it.

    All processes of a run keep one, with the same numbers; only the first has a `writer`.
    """

    def __init__(
        self,
        cfg: RunConfig,
        writer: MetricsWriter | None,
        meter: Meter,
        chain: Chain,
        clock: Clock,
        progress: Progress | None,
    ):
        self._cfg, self._writer, self._meter, self._progress = cfg.train, writer, meter, progress
        self.chain, self._clock = chain, clock
        self.asked = ""  # the signal that any process had when the newest reported step began
        length = cfg.data.target_length or cfg.data.length
        self._positions = cfg.train.batch_size * length  # of all processes together
        self._is_plain = cfg.objective.is_plain and not cfg.model.moe.num_experts
        self._pending: tuple[int, dict[str, jax.Array]] | None = None
        self._known: dict[str, Any] = {}  # newest values of all kinds, for the progress line

    def step(self, step: int, metrics: dict[str, jax.Array]) -> None:
        """Takes a step that was started and reports the one before."""
        self.flush()
        self._pending = step, metrics

    def flush(self) -> None:
        """Reports the pending step; raises TrainingFailed after too many skipped updates."""
        if self._pending is None:
            return
        step, metrics = self._pending
        self._pending = None
        found = jax.device_get(metrics)
        batch = as_int(found.pop("data"))
        values = {name: value.item() for name, value in found.items()}
        self.asked = _name(values.pop("stop", 0))
        self.chain.add(step, batch, values["loss"], values["grad_norm"])
        weight = values["weight"]
        self._meter.add(weight, self._positions)
        line = {
            "loss": values["loss"] / weight if weight else 0.0,
            "tokens": round(weight) if math.isfinite(weight) else weight,
            "accuracy": values["correct"] / weight if weight else 0.0,
            "grad_norm": values["grad_norm"],
            "learning_rate": values["learning_rate"],
            "skipped": values["skipped_total"],
        }
        if "spikes" in values:
            line["spikes"] = values["spikes"]
        if "distillation" in values:
            line["distillation"] = values["distillation"] / weight if weight else 0.0
        line |= {name: value for name, value in values.items() if "/" in name}
        if not self._is_plain:
            line["objective"] = values["total"]
        if step % self._cfg.log_every == 0 or step == self._cfg.num_steps:
            line |= self._meter.rates()
            self._write(step, "train", line | self.chain.links)
            self._meter.reset()
        self._show(step, line)
        if values["skipped"] >= self._cfg.max_skipped_steps:
            raise TrainingFailed(
                f"step {step}: the last {values['skipped']} updates were not finite "
                f"(loss {values['loss']:g}, gradient norm {values['grad_norm']:g}); "
                "lower schedule.peak_value or look at the data"
            )

    def evaluation(self, step: int, values: Mapping[str, Any], parameters: Any) -> float:
        """Writes the validation line, with the digest of the parameters, and returns its loss."""
        self._write(step, "eval", {**values, "parameters": as_hex(parameters)})
        self._show(step, {"eval_loss": values["loss"]})
        return float(values["loss"])

    def _write(self, step: int, split: str, values: Mapping[str, Any]) -> None:
        if self._writer is not None:
            spent = {"goodput": self._clock.goodput(), "seconds": self._clock.seconds()}
            self._writer.write(step, split, {**values, **spent})

    def _show(self, step: int, values: Mapping[str, Any]) -> None:
        self._known |= values
        if self._progress is not None:
            self._progress.update(step, self._known)


def _name(number: int) -> str:
    return signal.Signals(number).name if number else ""

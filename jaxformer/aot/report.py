"""What a compiled step needs of a chip and how fast it can be: tables and a roofline."""

import dataclasses

import jax

from jaxformer.analysis.accounts import flops
from jaxformer.aot.chips import GIB
from jaxformer.aot.compiled import LISTED, Compiled
from jaxformer.config import RunConfig
from jaxformer.evaluation.report import markdown
from jaxformer.models import abstract_params, build
from jaxformer.training.metrics import flops_per_position


@dataclasses.dataclass(frozen=True)
class Roofline:
    """Seconds of a step if one thing alone limited it, and the FLOPs of all chips together.

    `model_flops` are those of MFU; `all_flops` has what remat computes again besides.
    """

    model_flops: float
    all_flops: float
    compute: float
    hbm: float
    links: float
    peak: float  # FLOP/s of all chips

    @property
    def bounds(self) -> tuple[float, float]:
        """Seconds of a step: if all three overlap perfectly, and if chips wait for every byte."""
        parts = self.compute, self.hbm, self.links
        return max(parts), max(self.compute, self.hbm) + self.links

    @property
    def mfu(self) -> tuple[float, float]:
        """The share of peak that these two are."""
        best, worst = (self.model_flops / seconds / self.peak for seconds in self.bounds)
        return best, worst


def step_flops(cfg: RunConfig) -> tuple[float, float]:
    """(FLOPs of a step's forward and backward, the same with what remat computes again)."""
    length = cfg.data.target_length or cfg.data.length
    positions = cfg.train.batch_size * length
    needed = positions * flops_per_position(cfg, abstract_params(build(cfg.model)))
    forward = flops(cfg.model, length=length, source_length=cfg.data.length)
    again = {
        "none": 0,
        "full": forward.total - forward.head,
        "dots": forward.attention_matrix,
    }[cfg.model.remat]
    again += forward.head if cfg.model.logit_chunk else 0
    return needed, needed + positions * again


def roofline(cfg: RunConfig, compiled: Compiled) -> Roofline:
    """How fast the compiled step can be at the peaks of the chip's data sheet."""
    chip, count = compiled.topology.chip, compiled.mesh.size
    needed, computed = step_flops(cfg)
    sent = sum(found.sent for found in compiled.program.collectives())
    return Roofline(
        model_flops=needed,
        all_flops=computed,
        compute=computed / count / chip.flops,
        hbm=compiled.program.hbm_bytes() / chip.hbm_bandwidth,
        links=sent / chip.link_bandwidth,
        peak=count * chip.flops,
    )


def describe(cfg: RunConfig, compiled: Compiled) -> str:
    """All that `--aot` prints."""
    parts = [_head(cfg, compiled), memory_table(compiled), _largest(compiled)]
    parts += [collective_table(compiled), _speed(cfg, compiled)]
    return "\n\n".join(part.rstrip("\n") for part in parts)


def memory_table(compiled: Compiled) -> str:
    """Bytes of a chip by kind, and their share of its HBM."""
    rows = {
        **compiled.arguments,
        "temporaries": compiled.temporaries,
        "outputs not in place of arguments": compiled.outputs - compiled.aliased,
        "program": compiled.code,
        "total": compiled.total,
    }
    hbm = compiled.topology.chip.hbm
    return markdown(
        [
            {"a chip's": kind, "GiB": f"{size / GIB:.3f}", "of HBM": f"{size / hbm:.1%}"}
            for kind, size in rows.items()
        ]
    )


def collective_table(compiled: Compiled) -> str:
    """What goes between chips in a step, loops counted out."""
    found = compiled.program.collectives()
    if not found:
        return "no collectives"
    rows = [
        {
            "collective": one.kind,
            "a step": f"{one.count:,}",
            "GiB": f"{one.bytes / GIB:.3f}",
            "GiB sent by a chip": f"{one.sent / GIB:.3f}",
        }
        for one in found
    ]
    return markdown(rows)


def _head(cfg: RunConfig, compiled: Compiled) -> str:
    sizes = {axis: n for axis, n in compiled.mesh.shape.items() if n > 1} or {"data": 1}
    mesh = f"{' × '.join(sizes)} = {' × '.join(map(str, sizes.values()))}"
    took = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in compiled.seconds.items())
    rows, length = cfg.train.batch_size, cfg.data.length
    return (
        f"{compiled.topology.name}: {compiled.mesh.size} chips, {mesh}; a step of {rows:,} rows x "
        f"{length:,} tokens in {cfg.compute_dtype}, remat {cfg.model.remat}\n"
        f"{took}; jax {jax.__version__}"
    )


def _largest(compiled: Compiled) -> str:
    lines = [
        f"{max(a.size for a in found.arrays) / GIB:8.3f} GiB  "
        f"{max(found.arrays, key=lambda a: a.size)}  {found.source or found.opcode}"
        for found in compiled.program.largest(LISTED)
    ]
    return "\n".join(["largest results in HBM, arguments apart:", *lines])


def _speed(cfg: RunConfig, compiled: Compiled) -> str:
    chip, found = compiled.topology.chip, roofline(cfg, compiled)
    best, worst = found.bounds
    return (
        f"{found.model_flops:.4g} FLOPs a step"
        + f", {found.all_flops:.4g} with recomputation" * (found.all_flops > found.model_flops)
        + "\n"
        + markdown(
            [
                _limit("compute", found.compute, f"{chip.flops / 1e12:,.0f} TFLOP/s"),
                _limit("HBM", found.hbm, f"{chip.hbm_bandwidth / 1e9:,.0f} GB/s"),
                _limit("links", found.links, f"{chip.link_bandwidth / 1e9:,.0f} GB/s out"),
            ]
        )
        + f"\n\na step takes at least {_seconds(best)} (MFU {found.mfu[0]:.1%}), "
        f"{_seconds(worst)} if chips wait for every transfer (MFU {found.mfu[1]:.1%})"
    )


def _limit(name: str, seconds: float, peak: str) -> dict[str, str]:
    return {"limit": name, "a chip's peak": peak, "a step": _seconds(seconds)}


def _seconds(seconds: float) -> str:
    return f"{seconds:.3f} s" if seconds >= 1 else f"{1e3 * seconds:.3g} ms"

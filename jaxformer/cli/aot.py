"""train.py --aot: what a slice of TPUs would make of a config; and bytes for --dry_run."""

from jaxformer.config import RunConfig
from jaxformer.errors import UserError

STEPS = 10**6  # of an epoch that nobody has counted


def print_aot(cfg: RunConfig, text: str) -> None:
    """Compiles the train step for the topology and prints what it needs.

    Raises UserError where it does not fit, naming the largest buffers.
    """
    from jaxformer.aot.chips import GIB, describe_devices, parse_topology
    from jaxformer.aot.compiled import compile_step
    from jaxformer.aot.report import describe

    topology = parse_topology(text)
    devices = describe_devices(topology)  # refused before any data are opened
    cfg = resolve_unopened(cfg)
    compiled = compile_step(cfg, topology, devices)
    print(describe(cfg, compiled))
    if compiled.total > topology.chip.hbm:
        needed, there = (f"{size / GIB:.2f} GiB" for size in (compiled.total, topology.chip.hbm))
        what = f"the step needs {needed} of a chip's {there}"
        raise UserError(f"--aot={topology.name}", what, "cut more or set model.remat=full")


def resolve_unopened(cfg: RunConfig) -> RunConfig:
    """The config as `resolve` makes it, without opening data where it says all that counts.

    The shapes of a step need the vocabulary and the classes; the number of steps changes none.
    """
    unknown = not (cfg.model.vocab_size or cfg.model.has_images)
    unknown |= cfg.model.position.source.kind == "abacus"
    unknown |= cfg.objective.has_labels and not cfg.model.head.num_classes
    if cfg.data.is_task or unknown:
        from jaxformer.data import open_data, resolve

        return resolve(cfg, open_data(cfg, None))
    return cfg.resolve(vocab_size=cfg.model.vocab_size, steps_per_epoch=STEPS)


def print_memory(cfg: RunConfig) -> None:
    """Prints the bytes of a device by kind, for the config's mesh, be its devices here or not."""
    import jax

    from jaxformer.aot.memory import bytes_by_kind
    from jaxformer.evaluation.report import markdown

    sizes, found = bytes_by_kind(cfg, jax.device_count())
    rows = [{"a device's": kind, "bytes": f"{size:,}"} for kind, size in found.items()]
    rows.append({"a device's": "total", "bytes": f"{sum(found.values()):,}"})
    print(f"\nmesh {sizes}\n\n" + markdown(rows))

"""How devices are laid out, and what must divide for a run to be spread over them."""

import dataclasses
import math
from typing import TYPE_CHECKING, ClassVar

from jaxformer.config.section import Section, refuse
from jaxformer.errors import UserError

if TYPE_CHECKING:
    from jaxformer.config.run import RunConfig


@dataclasses.dataclass(frozen=True)
class MeshConfig(Section):
    """Devices along each axis; one may be -1, the rest."""

    prefix: ClassVar[str] = "mesh"

    data: int
    fsdp: int
    tensor: int = 1
    context: int = 1
    expert: int = 1

    def check(self) -> None:
        sizes = self.to_dict()
        for name, size in sizes.items():
            if size < 1 and size != -1:
                refuse(f"mesh.{name}", f"is {size}", "give a number of devices, or -1 for the rest")
        if list(sizes.values()).count(-1) > 1:
            refuse("mesh", f"has more than one -1: {sizes}", "give all sizes but one")

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes in the order of jaxformer.mesh.AXES."""
        return self.data, self.fsdp, self.expert, self.context, self.tensor

    @property
    def is_one_device(self) -> bool:
        return set(self.shape) == {1}

    def __str__(self) -> str:
        """E.g. 'data × fsdp = 2 × 4': these two, and what else is not 1."""
        shown = {n: s for n, s in self.to_dict().items() if n in ("data", "fsdp") or s != 1}
        return f"{' × '.join(shown)} = {' × '.join(map(str, shown.values()))}"

    def filled(self, count: int) -> "MeshConfig":
        """The same for `count` devices, without -1.

        Raises UserError where the sizes do not multiply to that (1 device always fits).
        """
        sizes = self.to_dict()
        known = math.prod(size for size in sizes.values() if size != -1)
        if -1 in sizes.values():
            if count % known:
                named = [name for name, size in sizes.items() if size not in (1, -1)]
                where = f"mesh.{named[0]}" if len(named) == 1 else "mesh"
                what = f"{known} does not divide the {count} devices"
                refuse(where, what, "change it or the number of devices")
            return MeshConfig(**{n: count // known if s == -1 else s for n, s in sizes.items()})
        if known not in (1, count):
            what = f"{self} but there are {count} devices"
            refuse("mesh", what, "set one of them to -1 for the rest")
        return self


def parse_mesh(text: str, own: MeshConfig) -> MeshConfig:
    """Reads AXIS:SIZE,… ('' for one device, 'run' for `own`); data takes the rest unless given.

    Raises UserError.
    """
    if text == "run":
        return own
    sizes: dict[str, int] = {}
    for part in text.split(",") if text else ():
        name, _, size = part.partition(":")
        if name not in own.to_dict() or name in sizes or not size.removeprefix("-").isdigit():
            mend = f"write AXIS:SIZE,… with each of {', '.join(own.to_dict())} once at most, or run"
            raise UserError("--mesh", f"has {part!r}", mend)
        sizes[name] = int(size)
    rest = -1 if text and -1 not in sizes.values() else 1
    mesh = MeshConfig(**({"data": rest, "fsdp": 1} | sizes))
    mesh.check()
    return mesh


def check_spread(cfg: "RunConfig", mesh: MeshConfig) -> None:
    """Raises UserError where a size of the run does not divide over the mesh (-1: not known)."""
    model, data = cfg.model, cfg.data
    tensor, context, fsdp = (max(1, size) for size in (mesh.tensor, mesh.context, mesh.fsdp))
    moe = model.moe
    if mesh.expert != 1 and not moe.num_experts:
        mend = "no layer has experts: set it to 1 or model.moe.num_experts"
        refuse("mesh.expert", f"is {mesh.expert}", mend)
    is_lstm = model.architecture == "lstm"
    cut = [("fsdp", fsdp, "model.d_model", model.d_model)]
    if not is_lstm:
        cut += [
            ("tensor", tensor, "model.num_heads", model.num_heads),
            ("tensor", tensor, "model.d_ff", model.ff_width),
            ("expert", max(1, mesh.expert), "model.moe.num_experts", moe.num_experts),
            ("tensor", tensor, "model.moe.d_ff", model.expert_width),
            ("tensor", tensor, "model.moe.shared_d_ff", moe.shared_d_ff),
        ]
    if is_lstm or model.head.transform or model.head.kind == "sequence":
        cut.append(("tensor", tensor, "model.d_model", model.d_model))
    if is_lstm and context > 1:
        mend = "an LSTM reads its tokens one after another: set it to 1"
        refuse("mesh.context", f"is {context} while model.architecture = lstm", mend)
    cut.append(("context", context, "data.length", data.length))
    if data.target_length:
        cut.append(("context", context, "data.target_length", data.target_length))
    for axis, size, field, value in cut:
        if value % size:
            what = f"{size} does not divide {field} = {value}"
            refuse(f"mesh.{axis}", what, "choose sizes that divide")
    if not is_lstm and tensor > 1 and model.kv_heads % tensor and tensor % model.kv_heads:
        what = f"{tensor} and model.num_kv_heads = {model.kv_heads}: neither divides the other"
        mend = "heads are shared out, or keys and values are whole on each device"
        refuse("mesh.tensor", what, mend)

"""Which kernel computes a call of attention: by name, or by platform and shape.

A kernel that cannot do what a call asks for gives way to one that can; `choose` says why.
"""

import dataclasses

from jaxformer.errors import UserError
from jaxformer.nn.platform import platform

# What a call may ask for beyond causality, segment ids and shared key/value heads.
DOES: dict[str, frozenset[str]] = {
    "reference": frozenset(
        {"dropout", "captured weights", "one query", "bias", "allow", "bias by content"}
        | {"softcap", "sink", "prefix"}
    ),
    "chunked": frozenset({"bias", "allow", "softcap", "sink"}),
    "blockwise": frozenset({"bias", "allow", "softcap", "sink", "prefix"}),
    "cudnn": frozenset(),
    "splash": frozenset({"softcap", "sink"}),
}
PLATFORM = {"cudnn": "gpu", "splash": "tpu"}  # the others run anywhere
FUSED = {platform: name for name, platform in PLATFORM.items()}

# Fewest queries from which `auto` takes a kernel: benchmarks/attention.py on two CPU cores, and on
# accelerators lengths at which whole weight matrices start to matter.
BLOCKWISE_FROM = {"cpu": 256}
CHUNKED_UP_TO = {"cpu": 512}  # from as many queries on as blockwise; longer rows keep much memory
BLOCKWISE_FROM_ELSEWHERE = 4096
SPLASH_FROM = 512
SPLASH_STEP = 128  # lanes of a TPU: lengths that it divides need no padding
CUDNN_WIDTH = 128  # most of a head, a multiple of 8


@dataclasses.dataclass(frozen=True)
class Case:
    """What a call of attention asks for, as far as it is known before the numbers are."""

    platform: str  # cpu | gpu | tpu
    length: int  # queries
    keys: int
    head_width: int
    dtype: str
    causal: bool
    window: bool
    aligned: bool  # queries and keys are the same tokens in the same places
    asks: frozenset[str]  # words of DOES
    context: int = 1  # pieces that a mesh cuts the queries into


def choose(kernel: str, case: Case) -> tuple[str, str]:
    """The kernel that runs, and why it is not the one that was wanted ('' if it is)."""
    wanted = preferred(case) if kernel == "auto" else kernel
    why = obstacle(wanted, case)
    if not why:
        return wanted, ""
    instead = "blockwise" if case.length >= _blockwise_from(case) else "reference"
    if wanted == "blockwise" or obstacle(instead, case):
        instead = "reference"
    return instead, f"attention: {wanted} {why}; {instead} does it"


def preferred(case: Case) -> str:
    """What `auto` stands for."""
    fused = case.dtype == "bfloat16" and case.length > 1 and case.context == 1
    if case.platform == "gpu" and fused:
        return "cudnn"
    whole = not (case.length % (SPLASH_STEP * case.context) or case.keys % SPLASH_STEP)
    if case.platform == "tpu" and case.length >= SPLASH_FROM and whole:
        return "splash"
    if case.length < _blockwise_from(case):
        return "reference"
    if case.length <= CHUNKED_UP_TO.get(case.platform, 0) and not obstacle("chunked", case):
        return "chunked"
    return "reference" if obstacle("blockwise", case) else "blockwise"


def _blockwise_from(case: Case) -> int:
    return BLOCKWISE_FROM.get(case.platform, BLOCKWISE_FROM_ELSEWHERE)


def obstacle(kernel: str, case: Case) -> str:
    """Why a kernel cannot do this; '' if it can."""
    if kernel in PLATFORM and case.platform != PLATFORM[kernel]:
        return f"needs a {PLATFORM[kernel]}, this is a {case.platform}"
    missing = sorted(case.asks - DOES[kernel])
    if missing:
        return f"has no {missing[0]}"
    if kernel == "chunked" and not (case.causal and case.aligned):
        return "is for tokens that look back at their own row"
    if kernel == "chunked" and case.context > 1:
        return "takes no queries that are cut along the length"
    if kernel in ("cudnn", "splash") and case.causal and not case.aligned:
        return "cannot continue a cache"
    if kernel == "cudnn":
        if case.context > 1:
            return "takes no queries that are cut along the length"
        if case.dtype not in ("bfloat16", "float16"):
            return f"takes no {case.dtype}"
        if case.head_width % 8 or case.head_width > CUDNN_WIDTH:
            return f"has no head width {case.head_width}"
        if case.length % 2 or case.keys % 2:
            return "takes even lengths"
        if case.window and not case.causal:
            return "has no window in both directions"
    if kernel == "splash" and case.length % (SPLASH_STEP * case.context) and case.context > 1:
        return f"takes a multiple of {SPLASH_STEP} queries on each of {case.context} devices"
    if kernel == "splash" and case.window and not case.aligned:
        return "has no window over other keys"
    return ""


def check_kernel(kernel: str) -> None:
    """Raises UserError where a kernel that a run asks for by name is of another platform."""
    here = platform()
    if kernel in PLATFORM and here != PLATFORM[kernel]:
        what = f"is {kernel}, which needs a {PLATFORM[kernel]}, and this is a {here}"
        mend = "choose auto, reference, chunked or blockwise"
        raise UserError("model.attention_kernel", what, mend)

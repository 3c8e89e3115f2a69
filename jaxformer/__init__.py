"""jaxformer: Transformers in JAX whose experiments can be trusted.

Arrays of rank two and more carry their shape in their name, one letter a dimension:

    B batch         L query length   S key or source length   P prompt length   C cache slots
    D d_model       H query heads    G key/value heads        K head dim        F feed-forward
    V vocabulary    N layers         E experts                R query heads a group, H / G
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxformer.run import Run, load

__all__ = ["Run", "load"]


def __getattr__(name: str) -> Any:
    """Imports `load` and `Run` at first use, so that `import jaxformer` stays light."""
    if name in __all__:
        from jaxformer import run

        return getattr(run, name)
    raise AttributeError(f"module 'jaxformer' has no attribute {name!r}")

"""jaxformer: Transformers in JAX whose experiments can be trusted.

Arrays of rank two and more carry their shape in their name, one letter a dimension:

    B batch         L query length   S key or source length   P prompt length   C cache slots
    D d_model       H query heads    G key/value heads        K head dim        F feed-forward
    V vocabulary    N layers         E experts                R query heads a group, H / G
"""

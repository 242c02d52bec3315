"""Normalisation of each head's queries and keys."""

import keras

NORMS = {
    "rms": keras.layers.RMSNormalization,
    "layer": keras.layers.LayerNormalization,
}


def check_norm(name):
    """`name`, if there is such a normalisation of heads `[..., H]`, or None; else a ValueError."""
    if name is not None and name not in NORMS:
        known = ", ".join(repr(norm) for norm in NORMS)
        raise ValueError(f"`query_key_norm` must be None or one of {known}. Received: {name!r}.")
    return name


def head_norm(norm, size, name, dtype):
    """A built layer that normalises `[..., size]`, or None.

    Args:
        norm: "rms", "layer" or None.
        size: H, the size of a head.
        name: name of the layer.
        dtype: its dtype policy.

    Returns:
        The layer, or None.
    """
    if norm is None:
        return None
    layer = NORMS[norm](name=name, dtype=dtype)
    layer.build((None, size))
    return layer

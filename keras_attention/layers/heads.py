"""Grouped heads: several query heads that share one key and value head."""

from keras import ops


def split_groups(x, groups):
    """Splits the head axis into groups.

    Args:
        x: `[..., N, T, D]`; where N is 1 it stands for all heads.
        groups: the number of groups, a divisor of N.

    Returns:
        `[..., groups, N / groups, T, D]`, or `[..., 1, 1, T, D]` where N is 1.
    """
    if x.shape[-3] == 1:
        return ops.expand_dims(x, -3)
    shape = ops.shape(x)
    return ops.reshape(x, (*shape[:-3], groups, x.shape[-3] // groups, *shape[-2:]))


def merge_groups(x):
    """Undoes `split_groups`: `[..., groups, G, T, D]` to `[..., groups * G, T, D]`."""
    shape = ops.shape(x)
    return ops.reshape(x, (*shape[:-4], x.shape[-4] * x.shape[-3], *shape[-2:]))

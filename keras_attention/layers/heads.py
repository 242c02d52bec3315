"""Heads: the projections to and from them, and groups that share one key and value head."""

from keras import ops


def project(dense, x, features=1):
    """Applies a dense layer that takes `[A, D...]` to steps `[B, ..., T, D...]`.

    One plain matrix product. As one for each sample, which is what an einsum over all axes comes
    down to, the gradient of the kernel would be B matrices that are added up.

    Args:
        dense: the layer.
        x: `[B, ..., T, D...]`.
        features: the number of axes D... of features.

    Returns:
        What the layer gives, with the axes `[B, ..., T]` in front.
    """
    leading = len(x.shape) - features
    if leading == 2 and x.shape[1] == 1:  # one step of a loop: no shapes to be found out
        if x.shape[0] == 1:
            return dense(ops.repeat(x[:, 0], 2, axis=0))[:1, None]
        return dense(x[:, 0])[:, None]
    rows = dense(ops.reshape(x, (-1, *x.shape[leading:])))
    return ops.reshape(rows, (*ops.shape(x)[:leading], *rows.shape[1:]))


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

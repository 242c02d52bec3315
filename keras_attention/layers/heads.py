"""Heads: the projections to and from them, and groups that share one key and value head."""

import math

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
    inputs, outputs = dense.kernel.shape[:features], dense.kernel.shape[features:]
    one_step = leading == 2 and x.shape[1] == 1  # of a loop: no shapes to be found out
    rows = ops.reshape(x, (-1, math.prod(inputs))) if features > 1 or not one_step else x[:, 0]
    if dense.quantization_mode is None:
        rows = _plain_product(dense, rows, outputs)
    else:
        rows = dense(ops.reshape(rows, (-1, *inputs)))
    if one_step:
        return ops.expand_dims(rows, 1)
    return ops.reshape(rows, (*ops.shape(x)[:leading], *outputs))


def _plain_product(dense, rows, outputs):
    """The dense layer as one product of two matrices; TensorFlow's einsum is slower for few rows.

    Args:
        dense: the layer.
        rows: `[A, D]`, the axes of features in one.
        outputs: the axes of the result behind A.

    Returns:
        `[A, *outputs]`.
    """
    kernel = ops.reshape(ops.cast(dense.kernel, dense.compute_dtype), (rows.shape[-1], -1))
    rows = ops.cast(rows, dense.compute_dtype)
    if rows.shape[0] == 1:  # XLA's product of one row with a reshaped matrix is ten times slower
        products = ops.matmul(ops.repeat(rows, 2, axis=0), kernel)[:1]
    else:
        products = ops.matmul(rows, kernel)
    if dense.bias is not None:
        bias = ops.cast(dense.bias, dense.compute_dtype)
        products = ops.add(products, ops.reshape(bias, (-1,)))
    return dense.activation(ops.reshape(products, (-1, *outputs)))


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

"""The largest of scores, the first of equal ones first, on every backend."""

import keras
from keras import ops


def largest(x, count):
    """`keras.ops.top_k`; but PyTorch's takes any of equal numbers.

    Args:
        x: `[B, N]`.
        count: how many, at most N.

    Returns:
        `(values, indices)`, both `[B, count]`, sorted; of equal numbers the first come first.
    """
    if keras.backend.backend() != "torch":
        return ops.top_k(x, count)
    if count == 1:
        indices = ops.argmax(x, axis=-1, keepdims=True)
    else:
        indices = ops.argsort(-x, axis=-1)[:, :count]  # stable
    return ops.take_along_axis(x, indices, axis=-1), indices

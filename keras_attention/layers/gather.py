"""Reads steps of a memory, and entries of what fits the scores, at indices of each query."""

import keras
from keras import ops


def take_steps(x, index):
    """Steps of the memory for each query.

    Args:
        x: `[B, S, ...]`; a first axis of size 1 broadcasts.
        index: integers `[B, T, W]`, each at least 0 and less than S.

    Returns:
        `x[b, index[b, t, w]]`, `[B, T, W, ...]`.
    """
    if x.shape[0] == 1:
        return ops.take(x[0], index, axis=0)
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        return tf.gather(x, index, axis=1, batch_dims=1)
    return ops.vectorized_map(lambda pair: ops.take(pair[0], pair[1], axis=0), (x, index))


def take_entries(x, index):
    """Entries of each query's row.

    Args:
        x: `[B, T, S]`.
        index: integers `[B, T, W]`, each at least 0 and less than S.

    Returns:
        `x[b, t, index[b, t, w]]`, `[B, T, W]`.
    """
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        return tf.gather(x, index, axis=2, batch_dims=2)
    return ops.take_along_axis(x, index, axis=-1)

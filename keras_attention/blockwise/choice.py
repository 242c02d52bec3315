"""Blocks or all at once, by the number of scores: known at once, or only in the graph."""

import contextlib
import contextvars
import math

import keras
from keras import ops

LIKELY_BATCH = 8  # where only the size of a batch is not known


_ALL_AT_ONCE = contextvars.ContextVar("all_at_once", default=False)


@contextlib.contextmanager
def all_at_once():
    """Within it nothing is computed in blocks, nor left to the graph to choose.

    For graphs that go into formats which know no such branches; scores `[B, N, T, S]` are formed
    whole there, whatever their number.
    """
    token = _ALL_AT_ONCE.set(True)
    try:
        yield
    finally:
        _ALL_AT_ONCE.reset(token)


def choose(shape, sizes, most, in_blocks, at_once):
    """Computes in blocks what has more than `most` numbers, where TensorFlow is the backend.

    Args:
        shape: `[...]`, batch first, None where a size is not known yet.
        sizes: function without arguments that gives the same as numbers and scalar tensors.
        most: the most numbers that are formed at once.
        in_blocks: function `traced -> result`; with `traced` it is to call a graph that was made
            once, as it stands in a branch that may never be taken.
        at_once: function without arguments that gives the same result.

    Returns:
        The result of one of the two.
    """
    if keras.backend.backend() != "tensorflow" or 0 in shape or _ALL_AT_ONCE.get():
        return at_once()
    if shape[0] is None:
        shape = (LIKELY_BATCH if None not in shape[1:] else None, *shape[1:])
    if None not in shape:
        return in_blocks(traced=False) if math.prod(shape) > most else at_once()
    total = 1.0
    for size in sizes():
        total = total * ops.cast(size, "float32")
    return ops.cond(total > most, lambda: in_blocks(traced=True), at_once)

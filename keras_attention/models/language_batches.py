"""A long text as batches for a language model."""

from functools import partial

import numpy as np

from keras_attention.checks import check_flag, check_positive
from keras_attention.models.epochs import epoch_dataset
from keras_attention.text import DataError


def language_batches(ids, length, batch_size=64, shuffle=True, seed=0, epoch=None):
    """Batches of stretches of one long text: read `length` tokens, predict each next one.

    Args:
        ids: integers `[N]`, the token ids of the text, e.g. `tokenizer.encode([text])[0]`; an
            array on disk (`numpy.memmap`) is read batch by batch.
        length: T, the number of tokens of a stretch.
        batch_size: B, the number of stretches in a batch; the last batch may have fewer.
        shuffle: whether the text is cut at other places, and stretches come in another order, in
            each epoch.
        seed: of the shuffling.
        epoch: as of `text_batches`.

    Returns:
        A `tf.data.Dataset` of `(inputs, labels)`, int32 `[B, T]` each, where labels are the inputs
        one step later. `len()` of it is the number of batches, which is the same in every epoch.

    Stretches follow each other without a gap, from a random offset below T (0 without shuffling).
    So that every offset gives as many of them, an epoch leaves out less than 2 T tokens at the two
    ends of the text together; without shuffling less than T, at its end.

    Raises:
        ValueError: if `ids` are not integers `[N]` with N > length, or a number is not positive.

    Example:

    >>> batches = language_batches(range(4, 11), length=3, batch_size=2, shuffle=False)
    >>> [(inputs.numpy().tolist(), labels.numpy().tolist()) for inputs, labels in batches]
    [([[4, 5, 6], [7, 8, 9]], [[5, 6, 7], [8, 9, 10]])]
    """
    import tensorflow as tf

    check_positive("length", length)
    check_positive("batch_size", batch_size)
    check_flag("shuffle", shuffle)
    ids = ids if isinstance(ids, np.memmap) else np.asarray(ids)
    if ids.ndim != 1 or not np.issubdtype(ids.dtype, np.integer):
        raise DataError(
            f"`ids` must be integers [N]. Received shape {ids.shape}, dtype {ids.dtype}."
        )
    # (A file that is read batch by batch is not read twice for this.)
    if (
        len(ids)
        and not isinstance(ids, np.memmap)
        and not 0 <= int(ids.min()) <= int(ids.max()) < 2**31
    ):
        raise DataError(f"`ids` must lie in 0 to 2^31 - 1. Received {ids.min()} to {ids.max()}.")
    if len(ids) <= length:
        raise DataError(
            "`ids` must have more than `length` tokens. "
            f"Received {len(ids):,} tokens and a length of {length:,}."
        )
    # The last label of each stretch is the first input of the next: N tokens have N - 1 labels.
    count = (len(ids) - 1) // length
    if shuffle:
        count = max(1, (len(ids) - length) // length)  # so many fit, whatever the offset
    batches = partial(_batches, ids, length, count, batch_size)
    spec = tf.TensorSpec([None, length], "int32")
    return epoch_dataset(batches, (spec, spec), -(-count // batch_size), shuffle, seed, epoch)


def _batches(ids, length, count, batch_size, random):
    starts = length * np.arange(count)
    if random is not None:
        # In a short text there are fewer offsets.
        starts += random.integers(min(length, len(ids) - count * length))
        random.shuffle(starts)
    for first in range(0, count, batch_size):
        rows = starts[first : first + batch_size, None] + np.arange(length + 1)
        stretches = ids[rows].astype("int32")
        yield stretches[:, :-1], stretches[:, 1:]

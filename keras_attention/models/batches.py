"""Pairs of texts as batches to train on."""

from functools import partial

import numpy as np

from keras_attention.checks import check_positive
from keras_attention.models.epochs import epoch_dataset
from keras_attention.text import DataError

CHUNK = 4096
BATCH_SIZE = 64
BATCHES_SORTED_TOGETHER = 50


def text_batches(
    sources,
    targets,
    source_tokenizer,
    target_tokenizer,
    batch_size=None,
    shuffle=True,
    seed=0,
    max_length=None,
    tokens_per_batch=None,
    epoch=None,
    length_multiple=None,
):
    """Batches of pairs of like lengths, so that little of them is padding.

    Args:
        sources, targets: lists of N texts each.
        source_tokenizer, target_tokenizer: the tokenizers.
        batch_size: B, the number of pairs in a batch, by default 64. With `tokens_per_batch` the
            largest number, by default any.
        shuffle: whether pairs and batches come in another order in each epoch.
        seed: of the shuffling.
        max_length: the most tokens of a side; pairs with more are left out. None keeps all.
        tokens_per_batch: the most tokens of a batch, padding included, on its longer side: a batch
            takes as many pairs as keep B * max(S, T) within it.
        epoch: an `EpochCounter`, which lets a training be taken up again after a kill; by default
            the first iteration over the batches is epoch 0, the next one epoch 1 and so on.
        length_multiple: m: both sides of a batch are padded to one length, a multiple of m. So
            batches come in few shapes: XLA, and TensorFlow's kernels on CPUs, make code for each
            shape, which can cost more than a little padding. None pads no more than needed.

    Returns:
        A `tf.data.Dataset` of `((source, target), labels)`, int32 and padded with 0: sources
        `[B, S]` end with END, targets `[B, T]` begin with START, and labels `[B, T]` are the
        targets one step later, with END. `len()` of it is the number of batches, which is the same
        in every epoch.

    With a fixed batch size, pairs are sorted by length within stretches of 50 batches of a random
    order. With `tokens_per_batch`, all are sorted by the longer side, and pairs of equal length
    change places at random, which leaves the sizes of the batches as they are. The batches of an
    epoch are shuffled in either case.

    Raises:
        ValueError: if the numbers of texts differ, no pair is left, or one is too long for
            `tokens_per_batch`.

    Example:

    >>> from keras_attention.text import CharacterTokenizer
    >>> letters = CharacterTokenizer.fit(["abc"])
    >>> (source, target), labels = next(iter(text_batches(["ab"], ["c"], letters, letters)))
    >>> source.numpy().tolist(), target.numpy().tolist(), labels.numpy().tolist()
    ([[4, 5, 2]], [[1, 6]], [[6, 2]])
    """
    import tensorflow as tf

    if batch_size is not None:
        check_positive("batch_size", batch_size)
    if max_length is not None:
        check_positive("max_length", max_length)
    for name, x in (
        ("source_tokenizer", source_tokenizer),
        ("target_tokenizer", target_tokenizer),
    ):
        if not hasattr(x, "encode"):
            raise DataError(f"`{name}` must be a tokenizer. Received: {x!r}.")
    if length_multiple is not None:
        check_positive("length_multiple", length_multiple)
    pairs = _pairs(sources, targets, source_tokenizer, target_tokenizer, max_length)
    lengths = np.array([(len(target) - 1, len(source)) for source, target in pairs])
    if tokens_per_batch is None:
        size = BATCH_SIZE if batch_size is None else batch_size
        count, order = -(-len(pairs) // size), partial(_equal_sizes, lengths, size)
    else:
        longest = _rounded(lengths.max(axis=1), length_multiple)
        longest = _check_longest(longest, tokens_per_batch, length_multiple or 1)
        ends = _ends_within(np.sort(longest), tokens_per_batch, batch_size)
        count, order = len(ends), partial(_equal_lengths, longest, ends)

    def batches(random):
        for rows in order(random):
            source, target = ([pairs[row][side] for row in rows] for side in (0, 1))
            inputs, labels = [x[:-1] for x in target], [x[1:] for x in target]
            width = length_multiple and _rounded(lengths[rows].max(), length_multiple)
            yield (_padded(source, width), _padded(inputs, width)), _padded(labels, width)

    spec = tf.TensorSpec([None, None], "int32")
    return epoch_dataset(batches, ((spec, spec), spec), count, shuffle, seed, epoch)


def _pairs(sources, targets, source_tokenizer, target_tokenizer, max_length):
    """The ids of each pair that is not too long: source with END, target with START and END."""
    for name, texts in (("sources", sources), ("targets", targets)):
        if isinstance(texts, (str, bytes)) or not hasattr(texts, "__len__"):
            raise DataError(f"`{name}` must be a list of texts. Received: {texts!r}.")
    if len(sources) != len(targets):
        raise DataError(
            "`sources` and `targets` must hold the same number of texts. "
            f"Received {len(sources):,} and {len(targets):,}."
        )
    source_rows = _rows(sources, source_tokenizer, add_end=True)
    target_rows = _rows(targets, target_tokenizer, add_start=True, add_end=True)
    pairs = [
        (a, b)
        for a, b in zip(source_rows, target_rows, strict=True)
        if max_length is None or max(len(a) - 1, len(b) - 2) <= max_length
    ]
    if not pairs:
        raise DataError(
            "There must be at least one pair of texts"
            + (f" of at most {max_length} tokens" if max_length else "")
            + f". Received {len(sources):,} pairs."
        )
    return pairs


def _rows(texts, tokenizer, **options):
    """The ids of each text, as arrays without padding."""
    rows = []
    for first in range(0, len(texts), CHUNK):
        ids = np.asarray(tokenizer.encode(list(texts[first : first + CHUNK]), **options))
        rows += [row[: np.count_nonzero(row)] for row in ids]
    return rows


def _equal_sizes(lengths, batch_size, random):
    """Row numbers of each batch. Sorted within stretches of a random order, then shuffled."""
    count = len(lengths)
    order = np.arange(count) if random is None else random.permutation(count)
    stretch = count if random is None else batch_size * BATCHES_SORTED_TOGETHER
    ordered = []
    for first in range(0, count, stretch):
        rows = order[first : first + stretch]
        ordered.append(rows[np.lexsort(lengths[rows].T[::-1])])
    ordered = np.concatenate(ordered)
    return _shuffled([ordered[i : i + batch_size] for i in range(0, count, batch_size)], random)


def _equal_lengths(longest, ends, random):
    """Row numbers of each batch. All sorted, in a random order where equal, then shuffled."""
    count = len(longest)
    order = np.arange(count) if random is None else random.permutation(count)
    ordered = order[np.argsort(longest[order], kind="stable")]
    return _shuffled(np.split(ordered, ends[:-1]), random)


def _shuffled(batches, random):
    if random is not None:
        random.shuffle(batches)
    return batches


def _check_longest(longest, tokens_per_batch, multiple):
    check_positive("tokens_per_batch", tokens_per_batch)
    too_long = int(np.sum(longest > tokens_per_batch))
    if too_long:
        limit = tokens_per_batch // multiple * multiple - 1  # END takes one
        raise DataError(
            f"`tokens_per_batch` must hold each pair. Received {tokens_per_batch:,}; "
            f"{too_long:,} of {len(longest):,} pairs need more, up to {longest.max():,} tokens. "
            + (f"`max_length={limit}` leaves those out." if limit > 0 else "")
        )
    return longest


def _ends_within(lengths, tokens_per_batch, batch_size=None):
    """Where batches of ascending `lengths` end, each as full as the limits allow."""
    ends, start = [], 0
    for row, length in enumerate(lengths):
        size = row - start
        if size and ((size + 1) * length > tokens_per_batch or size == batch_size):
            ends.append(row)
            start = row
    return [*ends, len(lengths)]


def _rounded(lengths, multiple):
    """Lengths, or the next multiples of `multiple`."""
    return lengths if multiple is None else -(-lengths // multiple) * multiple


def _padded(rows, width=None):
    array = np.zeros((len(rows), width or max(map(len, rows))), "int32")
    for row, target in zip(rows, array, strict=True):
        target[: len(row)] = row
    return array

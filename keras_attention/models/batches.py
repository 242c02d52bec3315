"""Pairs of texts as batches to train on."""

import numpy as np

from keras_attention.checks import check_positive
from keras_attention.text import DataError

CHUNK = 4096
BATCHES_SORTED_TOGETHER = 50


def text_batches(
    sources,
    targets,
    source_tokenizer,
    target_tokenizer,
    batch_size=64,
    shuffle=True,
    seed=0,
    max_length=None,
):
    """Batches of pairs of like lengths, so that little of them is padding.

    Args:
        sources, targets: lists of N texts each.
        source_tokenizer, target_tokenizer: the tokenizers.
        batch_size: B, the number of pairs in a batch.
        shuffle: whether pairs and batches come in another order in each epoch.
        seed: of the shuffling.
        max_length: the most tokens of a side; pairs with more are left out. None keeps all.

    Returns:
        A `tf.data.Dataset` of `((source, target), labels)`, int32 and padded with 0: sources
        `[B, S]` end with END, targets `[B, T]` begin with START, and labels `[B, T]` are the
        targets one step later, with END. `len()` of it is the number of batches.

    Raises:
        ValueError: if the numbers of texts differ, or no pair is left.

    Example:

    >>> from keras_attention.text import CharacterTokenizer
    >>> letters = CharacterTokenizer.fit(["abc"])
    >>> (source, target), labels = next(iter(text_batches(["ab"], ["c"], letters, letters)))
    >>> source.numpy().tolist(), target.numpy().tolist(), labels.numpy().tolist()
    ([[4, 5, 2]], [[1, 6]], [[6, 2]])
    """
    import tensorflow as tf

    check_positive("batch_size", batch_size)
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
    lengths = np.array([(len(b), len(a)) for a, b in pairs])
    random = np.random.default_rng(seed)

    def batches():
        for rows in _like_lengths(lengths, batch_size, random if shuffle else None):
            source, target = ([pairs[row][side] for row in rows] for side in (0, 1))
            inputs, labels = [x[:-1] for x in target], [x[1:] for x in target]
            yield (_padded(source), _padded(inputs)), _padded(labels)

    spec = tf.TensorSpec([None, None], "int32")
    dataset = tf.data.Dataset.from_generator(batches, output_signature=((spec, spec), spec))
    count = -(-len(pairs) // batch_size)
    return dataset.apply(tf.data.experimental.assert_cardinality(count)).prefetch(2)


def _rows(texts, tokenizer, **options):
    """The ids of each text, as arrays without padding."""
    rows = []
    for first in range(0, len(texts), CHUNK):
        ids = np.asarray(tokenizer.encode(list(texts[first : first + CHUNK]), **options))
        rows += [row[: np.count_nonzero(row)] for row in ids]
    return rows


def _like_lengths(lengths, batch_size, random):
    """Row numbers of each batch. Sorted within stretches of a random order, then shuffled."""
    count = len(lengths)
    order = np.arange(count) if random is None else random.permutation(count)
    stretch = count if random is None else batch_size * BATCHES_SORTED_TOGETHER
    ordered = []
    for first in range(0, count, stretch):
        rows = order[first : first + stretch]
        ordered.append(rows[np.lexsort(lengths[rows].T[::-1])])
    ordered = np.concatenate(ordered)
    batches = [ordered[i : i + batch_size] for i in range(0, count, batch_size)]
    if random is not None:
        random.shuffle(batches)
    return batches


def _padded(rows):
    array = np.zeros((len(rows), max(map(len, rows))), "int32")
    for row, target in zip(rows, array, strict=True):
        target[: len(row)] = row
    return array

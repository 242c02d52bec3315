"""Attention masks: boolean, broadcastable to the scores `[..., T, S]`, True = may attend.

Every mask of the package is made and merged here. The conventions, for all functions:

- a mask of rank 2 is `[T, S]` and holds for the whole batch;
- a mask of rank 3 or more starts with the batch axis and ends with `[T, S]`. Where it has fewer
  axes than the scores, the missing ones (the heads) are inserted right after the batch axis, so
  that batch is never taken for heads;
- integers 0 and 1 may stand for booleans; floating masks are refused.
"""

import keras
from keras import ops

from keras_attention.checks import check_broadcast, check_integers, check_positive


def as_mask(mask, name="mask"):
    """Converts `mask` (tensor, array, list or tuple of booleans or integers) to a boolean tensor.

    Args:
        mask: boolean or integer values of any shape `[...]`, or None.
        name: what error messages call it.

    Returns:
        A boolean tensor of the same shape, or None for None.

    Raises:
        ValueError: if the values are floating: an additive mask belongs in `attention_bias`.
    """
    if mask is None:
        return None
    mask = ops.convert_to_tensor(mask)
    dtype = keras.backend.standardize_dtype(mask.dtype)
    if dtype == "bool":
        return mask
    if not dtype.startswith(("int", "uint")):
        raise ValueError(
            f"`{name}` must be boolean (or integers 0 and 1), True = may attend. Received dtype "
            f"{dtype}. Numbers to add to the scores are the `attention_bias` of a layer."
        )
    return ops.not_equal(mask, 0)


def padding_mask(lengths, size=None):
    """Hides the keys at and behind the end of each sequence.

    Args:
        lengths: `[B]` integers, the number of real keys of each sample.
        size: S, the padded number of keys; by default the largest of `lengths`.

    Returns:
        A mask `[B, 1, S]`: entry (b, 0, s) is s < lengths[b].

    Raises:
        ValueError: if `lengths` is not of rank 1.

    Example:

    >>> padding_mask([1, 3]).numpy().astype(int)
    array([[[1, 0, 0]],
    <BLANKLINE>
           [[1, 1, 1]]])
    """
    lengths = ops.convert_to_tensor(lengths)
    if len(lengths.shape) != 1:
        raise ValueError(f"`lengths` must have shape [B]. Received shape {tuple(lengths.shape)}.")
    check_integers("lengths", lengths)
    lengths = ops.cast(lengths, "int32")  # small integers could not count to `size`
    size = ops.max(lengths, initial=0) if size is None else size
    return ops.less(ops.arange(size, dtype="int32"), lengths[:, None])[:, None, :]


def causal_mask(query_size, key_size=None):
    """Lets a query see the keys up to its own position, aligned at the bottom right.

    With T queries and S keys, query t may attend to key s where s <= t + (S - T): the last query
    sees every key, as decoding with a cache needs it. With T = S it is the usual triangle.

    Args:
        query_size: T, a number or a scalar tensor.
        key_size: S, by default T.

    Returns:
        A mask `[T, S]`.

    Example:

    >>> causal_mask(2, 3).numpy().astype(int)
    array([[1, 1, 0],
           [1, 1, 1]])
    """
    distance = key_distance(query_size, key_size)
    return ops.less_equal(distance, 0)


def window_mask(query_size, key_size=None, *, window):
    """Lets a query see only the keys less than `window` positions away, on either side.

    Query t may attend to key s where |t + (S - T) - s| < window. Combined with `causal_mask` it
    is the sliding window of the last `window` keys.

    Args:
        query_size: T, a number or a scalar tensor.
        key_size: S, by default T.
        window: positive integer, in positions.

    Returns:
        A mask `[T, S]`.

    Raises:
        ValueError: if `window` is not a positive integer.

    Example:

    >>> window_mask(3, window=2).numpy().astype(int)
    array([[1, 1, 0],
           [1, 1, 1],
           [0, 1, 1]])
    """
    check_positive("window", window)
    return ops.less(ops.abs(key_distance(query_size, key_size)), window)


def prefix_mask(lengths, query_size, key_size=None):
    """Lets all queries see the whole prefix, and behind it the keys up to their own position.

    Query t may attend to key s where s < lengths[b] or s <= t + (S - T): the prefix language
    model of [Raffel et al., 2020](https://arxiv.org/abs/1910.10683), section 3.2.1.

    Args:
        lengths: `[B]` integers, the number of keys in each sample's prefix.
        query_size: T, a number or a scalar tensor.
        key_size: S, by default T.

    Returns:
        A mask `[B, T, S]`.

    Raises:
        ValueError: if `lengths` are no integers of rank 1.

    Example:

    >>> prefix_mask([2], 3).numpy().astype(int)
    array([[[1, 1, 0],
            [1, 1, 0],
            [1, 1, 1]]])
    """
    prefix = padding_mask(lengths, query_size if key_size is None else key_size)
    return ops.logical_or(prefix, causal_mask(query_size, key_size)[None])


def segment_mask(query_segments, key_segments=None):
    """Lets a query see only the keys of its own segment, as packed documents need it.

    Args:
        query_segments: `[B, T]` integers, the segment that each query belongs to.
        key_segments: `[B, S]` integers; by default `query_segments`.

    Returns:
        A mask `[B, T, S]`: equal segments.

    Raises:
        ValueError: if an argument is not of rank 2.

    Example:

    >>> segment_mask([[7, 7, 8]]).numpy().astype(int)
    array([[[1, 1, 0],
            [1, 1, 0],
            [0, 0, 1]]])
    """
    query_segments = ops.convert_to_tensor(query_segments)
    key_segments = query_segments if key_segments is None else ops.convert_to_tensor(key_segments)
    for name, segments in (("query_segments", query_segments), ("key_segments", key_segments)):
        check_integers(name, segments)
        if len(segments.shape) != 2:
            raise ValueError(
                f"`{name}` must have rank 2 ([B, T] or [B, S]). "
                f"Received shape {tuple(segments.shape)}."
            )
    check_broadcast("key_segments", key_segments.shape[:1], query_segments.shape[:1], mutual=True)
    return ops.equal(query_segments[:, :, None], key_segments[:, None, :])


def combine_masks(*masks):
    """Ands masks of any ranks; None stands for "no mask".

    Args:
        *masks: masks `[T, S]`, `[B, T, S]` or `[B, ..., T, S]`, or None. Axes of size 1
            broadcast; missing axes are inserted after the batch axis.

    Returns:
        One mask that broadcasts to the scores, or None if all are None.

    Raises:
        ValueError: if a mask is floating, of a rank below 2, or does not fit the others.

    Example:

    >>> combine_masks(None, causal_mask(2), padding_mask([1, 2])).numpy().astype(int)
    array([[[1, 0],
            [1, 0]],
    <BLANKLINE>
           [[1, 0],
            [1, 1]]])
    """
    masks = [as_mask(mask) for mask in masks if mask is not None]
    if not masks:
        return None
    if any(len(mask.shape) < 2 for mask in masks):
        shapes = ", ".join(str(tuple(mask.shape)) for mask in masks)
        raise ValueError(f"Each mask must have axes [T, S] at least. Received shapes {shapes}.")
    rank = max(len(mask.shape) for mask in masks)
    combined = align_to_rank(masks[0], rank)
    for mask in masks[1:]:
        mask = align_to_rank(mask, rank)
        check_broadcast("mask", mask.shape, combined.shape, mutual=True)
        combined = ops.logical_and(combined, mask)
    return combined


def align_to_rank(values, rank, name="mask"):
    """Inserts the axes that `values` lacks against scores of `rank` axes, after the batch axis.

    Args:
        values: a mask or a bias: `[T, S]`, `[B, T, S]`, `[B, ..., T, S]`.
        rank: the rank to reach.
        name: what error messages call it.

    Returns:
        `values` with `rank` axes (rank 2, `[T, S]`, stays as it is).

    Raises:
        ValueError: if `values` has fewer than 2 axes or more than `rank`.
    """
    own = len(values.shape)
    if own == rank:
        return values
    if own < 2 or own > rank:
        raise ValueError(
            f"`{name}` must have between 2 and {rank} axes, ending in [T, S], to fit scores of "
            f"rank {rank}. Received shape {tuple(values.shape)}."
        )
    if own == 2:
        return values
    for _ in range(rank - own):
        values = ops.expand_dims(values, 1)
    return values


def bias_mask(bias):
    """False where a bias of any shape `[...]` is -inf, which forbids like a mask; None for None."""
    return None if bias is None else ops.not_equal(bias, float("-inf"))


def key_distance(query_size, key_size):
    """Position of the key minus that of the query, `[T, S]`; the last query is at the last key."""
    key_size = query_size if key_size is None else key_size
    queries = ops.arange(query_size, dtype="int32") + (key_size - query_size)
    return ops.arange(key_size, dtype="int32") - queries[:, None]

"""Attention over several axes: bring them to one axis of steps, and back."""

import math

from keras import ops


def steps_order(rank, attention_axes):
    """Order of axes with the attention axes just before the features.

    Args:
        rank: rank of the input `[B, ..., D]`.
        attention_axes: the axes that are attended over, ascending, without batch and features.

    Returns:
        A permutation: batch, the other axes, the attention axes, features.
    """
    others = [axis for axis in range(rank - 1) if axis not in attention_axes]
    return (*others, *attention_axes, rank - 1)


def merge_steps(x, attention_axes):
    """Brings `[B, ..., D]` to `[B, others..., T, D]`, T the attention axes in row-major order.

    Args:
        x: a tensor `[B, ..., D]`.
        attention_axes: as in `steps_order`.

    Returns:
        A tensor `[B, others..., T, D]`.
    """
    rank = len(x.shape)
    order = steps_order(rank, attention_axes)
    if order != tuple(range(rank)):
        x = ops.transpose(x, order)
    if len(attention_axes) == 1:
        return x
    first = rank - 1 - len(attention_axes)
    sizes = _sizes(x)
    return ops.reshape(x, (*sizes[:first], _product(sizes[first:-1]), sizes[-1]))


def split_steps(x, like, attention_axes):
    """Undoes `merge_steps`, for an `x` that has other features than before.

    Args:
        x: `[B, others..., T, features...]`.
        like: the tensor `[B, ..., D]` whose axes are restored.
        attention_axes: as in `steps_order`.

    Returns:
        A tensor `[B, ..., features...]`.
    """
    rank = len(like.shape)
    order = steps_order(rank, attention_axes)
    extra = len(x.shape) - (rank - len(attention_axes))  # axes of features
    sizes = _sizes(like)
    if len(attention_axes) > 1:
        x = ops.reshape(x, (*(sizes[a] for a in order[:-1]), *_sizes(x)[len(x.shape) - extra :]))
    back = sorted(range(rank - 1), key=lambda position: order[position])
    if back != list(range(rank - 1)):
        x = ops.transpose(x, (*back, *range(rank - 1, rank - 1 + extra)))
    return x


def split_weights(weights, query, value, attention_axes):
    """Gives weights `[B, others..., N, T, S]` the attention axes of query and value.

    Args:
        weights: `[B, others..., N, T, S]`.
        query: the query `[B, ..., Dq]`, `value`: the value `[B, ..., Dv]`, as they came.
        attention_axes: as in `steps_order`.

    Returns:
        A tensor `[B, others..., N, T axes..., S axes...]`.
    """
    if len(attention_axes) == 1:
        return weights
    queries, keys = _sizes(query), _sizes(value)
    axes = (*(queries[a] for a in attention_axes), *(keys[a] for a in attention_axes))
    return ops.reshape(weights, (*_sizes(weights)[:-2], *axes))


def merge_mask(name, mask, rank, attention_axes):
    """Brings an attention mask or bias over several axes to `[B, others..., N, T, S]`.

    Args:
        name: what error messages call it.
        mask: `[B, T axes..., S axes...]`, with `others...`, and then N, after the batch axis
            where they are given.
        rank: rank of the query.
        attention_axes: as in `steps_order`.

    Returns:
        A tensor of the rank of the scores, with axes of size 1 where the mask had none.

    Raises:
        ValueError: if the mask has too few or too many axes.
    """
    count = len(attention_axes)
    others = rank - 2 - count
    shape = tuple(mask.shape)
    leading = len(shape) - 2 * count
    if leading not in (1, 1 + others, 2 + others):
        raise ValueError(
            f"`{name}` over {count} attention axes must have shape [B, T axes, S axes], "
            f"optionally with all {others} other axes, and then the heads, after B. "
            f"Received shape {shape}."
        )
    if count > 1:
        sizes = _sizes(mask)
        queries = _product(sizes[leading : leading + count])
        mask = ops.reshape(mask, (*sizes[:leading], queries, _product(sizes[leading + count :])))
    if leading == 1 + others:  # all but the heads
        mask = ops.expand_dims(mask, -3)
    while len(mask.shape) < others + 4:
        mask = ops.expand_dims(mask, 1)
    return mask


def _sizes(x):
    """Sizes of all axes, as numbers where they are known."""
    dynamic = ops.shape(x)
    return tuple(known if known is not None else dynamic[i] for i, known in enumerate(x.shape))


def _product(sizes):
    return math.prod(sizes) if sizes else 1

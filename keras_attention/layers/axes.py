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


class AttentionAxes:
    """How a layer with heads takes inputs `[B, ..., D]` with one or more attention axes."""

    _attention_axes = None  # the axes asked for, or None for all between the first and the last

    def _check_ranks(self, query, value, key):
        given = [len(shape) for shape in (value, key, query) if shape is not None]
        if query is not None and len(query) == 2:  # one step over keys [B, S, D]
            given[-1] = 3
        if min(given) < 3 or len(set(given)) > 1:
            raise ValueError(
                "`query`, `value` and `key` must have the same number of axes, at least 3 (a "
                "query [B, D] is one step). Received shapes query "
                f"{query}, value {value}, key {key}."
            )
        rank = given[0]
        attended = self._axes(rank)
        for axis in range(1, rank - 1):
            shapes = {"query": query, "value": value, "key": key}
            sizes = {shape[axis] for shape in shapes.values() if shape is not None}
            if rank > 3 and axis not in attended and len(sizes - {None}) > 1:
                raise ValueError(
                    f"`query`, `value` and `key` must be equal on axis {axis}, which is not one "
                    f"of the attention axes {attended}. Received shapes query {query}, value "
                    f"{value}, key {key}."
                )

    def _axes(self, rank):
        """The attention axes of inputs of this rank, from 1 to rank - 2, ascending."""
        chosen = self._attention_axes or tuple(range(1, rank - 1))
        resolved = tuple(sorted(axis + rank if axis < 0 else axis for axis in chosen))
        if len(set(resolved)) < len(resolved) or not all(0 < a < rank - 1 for a in resolved):
            raise ValueError(
                f"`attention_axes` must be different axes between the first and the last of "
                f"inputs with {rank} axes. Received: {chosen}."
            )
        return resolved

    def _steps_shape(self, shape):
        if len(shape) == 2:
            return (shape[0], 1, shape[1])
        attended = self._axes(len(shape))
        return (*(shape[a] for a in range(len(shape) - 1) if a not in attended), None, shape[-1])

    def _to_steps(self, x):
        if len(x.shape) <= 3:
            return super()._to_steps(x)
        return merge_steps(x, self._axes(len(x.shape)))

    def _from_steps(self, output, query):
        if len(query.shape) <= 3:
            return super()._from_steps(output, query)
        return split_steps(output, query, self._axes(len(query.shape)))

    def _align(self, name, values, query):
        rank = len(query.shape)
        if rank <= 3:
            return super()._align(name, values, query)
        return merge_mask(name, values, rank, self._axes(rank))

    def _weights_from_steps(self, weights, query, value):
        weights = self._ungroup(weights)
        if len(query.shape) <= 3:
            return super()._weights_from_steps(weights, query, value)
        return split_weights(weights, query, value, self._axes(len(query.shape)))

    def precompute(self, value, key=None, value_mask=None, key_positions=None):
        rank = len(ops.shape(value))
        if rank > 3 and len(self._axes(rank)) > 1:
            raise ValueError(
                "`precompute` keeps one axis of steps; attention over several axes takes `value` "
                f"itself. Received a value with {rank} axes and attention_axes "
                f"{self._axes(rank)}."
            )
        return super().precompute(value, key, value_mask, key_positions)


def _sizes(x):
    """Sizes of all axes, as numbers where they are known."""
    dynamic = ops.shape(x)
    return tuple(known if known is not None else dynamic[i] for i, known in enumerate(x.shape))


def _product(sizes):
    return math.prod(sizes) if sizes else 1

"""Local attention: for each query a window of the memory, gathered, so that cost is O(T * window).

Places count the real steps of the memory from 0: masked steps, wherever they stand, count as if
they were not there. So does the position of a query.
"""

from typing import Any, NamedTuple

import keras
from keras import ops

from keras_attention.attend import weighted_sum
from keras_attention.normalizers import upcast
from keras_attention.products import vector_product


class Window(NamedTuple):
    """The part of the memory that each query looks at; W = 2D + 1, or S if that is less.

    Attributes:
        places: `[B, T, W]` integers, ascending by 1; the window moves off the memory's ends.
        index: `[B, T, W]`, the memory steps at these places; any step where the mask is False.
        distance: `[B, T, W]` floating, the places less the position of the query.
        mask: `[B, T, W]`, True = at most D away and a real step.
    """

    places: Any
    index: Any
    distance: Any
    mask: Any


def attend_locally(prepared, positions, radius, score, normalizer, seed, fade):
    """Attention of each query to the window around its position.

    Args:
        prepared: the `Prepared` inputs of a layer, without heads.
        positions: p_t, `[B, T]`, floating.
        radius: D, a positive integer.
        score: function `(query [..., 1, Dq], key [..., W, Dk]) -> scores [..., 1, W]`.
        normalizer: function `(scores, mask) -> weights`.
        seed: of the dropout.
        fade: whether the weights are multiplied by a Gaussian around the position.

    Returns:
        The context `[B, T, Dv]`, and the weights `[B, T, S]` if `prepared` wants them, else None.
    """
    memory_mask, size = prepared.memory_mask, ops.shape(prepared.values)[1]
    window = window_around(positions, radius, memory_mask, size)
    near = at_window(prepared, window)

    def faded(scores, mask):
        factors = gaussian(window.distance, radius)[:, :, None]
        return upcast(normalizer(scores, mask)) * ops.cast(factors, upcast(scores).dtype)

    context, weights = weighted_sum(
        near.queries,
        near.keys,
        near.values,
        score,
        near.mask,
        near.bias,
        faded if fade else normalizer,
        near.dropout,
        seed,
        return_attention_scores=True,
    )
    wanted = prepared.return_attention_scores
    weights = spread(weights[:, :, 0], window, memory_mask, size) if wanted else None
    return context[:, :, 0], weights


def places_of(mask, size):
    """The place of each step: the number of real steps before it.

    Args:
        mask: `[B, S]`, True = a real step; None if all are.
        size: S.

    Returns:
        Integers `[B, S]`, or `[1, S]` without a mask; meaningless where the mask is False.
    """
    if mask is None:
        return ops.arange(size, dtype="int32")[None]
    return ops.cumsum(ops.cast(mask, "int32"), axis=-1) - 1


def monotonic_positions(done, query_mask, steps):
    """Positions of local-m: p_t = t.

    Args:
        done: `[B]` integers, the number of real query steps before.
        query_mask: `[B, T]`, True = a real step; None if all are.
        steps: T.

    Returns:
        Positions `[B, T]`, floating, and the number of real steps after these, `[B]`.
    """
    positions = done[:, None] + places_of(query_mask, steps)
    if query_mask is None:
        done = done + steps
    else:
        done = done + ops.sum(ops.cast(query_mask, done.dtype), axis=-1)
    return ops.cast(positions, "float32"), done


def predicted_positions(hidden, v, memory_mask, size):
    """Positions of local-p: p_t = S sigmoid(v^T tanh(hidden_t)), S the real length.

    Args:
        hidden: `[B, T, U]`.
        v: `[U]`.
        memory_mask: `[B, S]`, True = a real step; None if all are.
        size: S with padding.

    Returns:
        Positions `[B, T]` in float32 or float64.
    """
    hidden = upcast(hidden)
    share = ops.sigmoid(vector_product(ops.tanh(hidden), ops.cast(v, hidden.dtype)))
    return ops.cast(_lengths(memory_mask, size), share.dtype) * share


def window_around(positions, radius, memory_mask, size):
    """The places at most `radius` away from each position.

    Args:
        positions: p_t, `[B, T]`, floating.
        radius: D, a positive integer.
        memory_mask: `[B, S]`, True = a real step; None if all are.
        size: S.

    Returns:
        A `Window`.
    """
    width, last = _smaller(2 * radius + 1, size), _larger(size - 1, 0)
    first = ops.cast(ops.ceil(ops.stop_gradient(positions) - radius), "int32")
    first = ops.maximum(ops.minimum(first, size - width), 0)
    places = first[..., None] + ops.arange(width, dtype="int32")
    distance = ops.cast(places, positions.dtype) - positions[..., None]
    mask = ops.logical_and(
        ops.abs(distance) <= radius, places < ops.expand_dims(_lengths(memory_mask, size), -1)
    )
    index = ops.minimum(places, last)
    if memory_mask is not None:
        index = take_steps(_real_steps(memory_mask, size), index)
    return Window(places, index, distance, mask)


def at_window(prepared, window):
    """Each query with the keys and values of its window, as inputs of `weighted_sum`.

    Args:
        prepared: the `Prepared` inputs of a layer.
        window: the `Window`.

    Returns:
        `Prepared` with queries `[B, T, 1, Dq]`, keys and values `[B, T, W, D]`, and mask and bias
        `[B, T, 1, W]`. What the mask hides is 0.
    """
    mask = window.mask
    if prepared.query_mask is not None:
        mask = ops.logical_and(mask, prepared.query_mask[..., None])
    if prepared.mask is not None:
        mask = ops.logical_and(mask, _entries(prepared.mask, window.index))
    if prepared.use_causal_mask:  # aligned at the bottom right, see `masks.causal_mask`
        steps, size = ops.shape(prepared.queries)[1], ops.shape(prepared.values)[1]
        latest = ops.arange(steps, dtype="int32") + (size - steps)
        mask = ops.logical_and(mask, window.index <= latest[:, None])

    def take(steps):
        steps = take_steps(steps, window.index)
        return ops.where(mask[..., None], steps, ops.zeros((), steps.dtype))

    values = take(prepared.values)
    return prepared._replace(
        queries=prepared.queries[:, :, None],
        keys=values if prepared.keys is prepared.values else take(prepared.keys),
        values=values,
        mask=mask[:, :, None],
        bias=None if prepared.bias is None else _entries(prepared.bias, window.index)[:, :, None],
    )


def gaussian(distance, radius):
    """Weight by the distance from the position, of standard deviation radius / 2.

        exp(-(s - p_t)^2 / (2 sigma^2)),  sigma = D / 2

    Args:
        distance: s - p_t, `[B, T, W]`.
        radius: D.

    Returns:
        Factors `[B, T, W]`, at most 1.
    """
    return ops.exp(-2 * ops.square(distance / radius))


def spread(weights, window, memory_mask, size):
    """Weights over the window as weights over the whole memory, 0 outside.

    Args:
        weights: `[B, T, W]`.
        window: the `Window`.
        memory_mask: `[B, S]`, True = a real step; None if all are.
        size: S.

    Returns:
        Weights `[B, T, S]`.
    """
    offset = places_of(memory_mask, size)[:, None] - window.places[..., :1]
    width = ops.shape(weights)[-1]
    inside = ops.logical_and(offset >= 0, offset < width)
    if memory_mask is not None:
        inside = ops.logical_and(inside, memory_mask[:, None])
    weights = take_entries(weights, ops.clip(offset, 0, width - 1))
    return ops.where(inside, weights, ops.zeros((), weights.dtype))


def take_steps(x, index):
    """`x[b, index[b, ...]]`: from `[B, S, ...]` and integers `[B, T, W]` to `[B, T, W, ...]`.

    A first axis of size 1 broadcasts.
    """
    if x.shape[0] == 1:
        return ops.take(x[0], index, axis=0)
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        return tf.gather(x, index, axis=1, batch_dims=1)
    return ops.vectorized_map(lambda pair: ops.take(pair[0], pair[1], axis=0), (x, index))


def take_entries(x, index):
    """`x[b, t, index[b, t, w]]`: from `[B, T, S]` and integers `[B, T, W]` to `[B, T, W]`."""
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        return tf.gather(x, index, axis=2, batch_dims=2)
    return ops.take_along_axis(x, index, axis=-1)


def _entries(x, index):
    """Entries of a mask or bias that broadcasts to `[B, T, S]` at `index` `[B, T, W]`."""
    batch, steps, _ = ops.shape(index)
    size = ops.shape(x)[-1]
    if x.shape[1] == 1:  # the same for all queries
        x = x[:, 0]
        return take_steps(x if x.shape[0] == 1 else ops.broadcast_to(x, (batch, size)), index)
    return take_entries(ops.broadcast_to(x, (batch, steps, size)), index)


def _real_steps(mask, size):
    """Where the real steps stand, `[B, S]`: the inverse of `places_of`, then 0."""
    batch = ops.shape(mask)[0]
    places = ops.maximum(places_of(mask, size), 0)
    rows = ops.broadcast_to(ops.arange(batch, dtype="int32")[:, None], (batch, size))
    steps = ops.where(mask, ops.arange(size, dtype="int32"), 0)
    return ops.scatter(ops.stack([rows, places], axis=-1), steps, (batch, size))


def _lengths(mask, size):
    """The number of real steps, `[B, 1]`, or a scalar where all are real."""
    if mask is None:
        return ops.convert_to_tensor(size, "int32")
    return ops.sum(ops.cast(mask, "int32"), axis=-1, keepdims=True)


def _smaller(a, b):
    return min(a, b) if isinstance(b, int) else ops.minimum(a, b)


def _larger(a, b):
    return max(a, b) if isinstance(a, int) else ops.maximum(a, b)

"""Local attention: each query sees the memory in a window around its position.

Places count the real steps of the memory from 0: masked steps, wherever they stand, count as if
they were not there. So does the position of a query.
"""

from typing import Any, NamedTuple

from keras import ops

from keras_attention.attend import hide, weighted_sum
from keras_attention.layers.gather import take_entries, take_steps
from keras_attention.normalizers import upcast
from keras_attention.pairs import Pairs
from keras_attention.products import vector_product

# A memory of up to this many windows, at least 1, is one window for all queries: one large product
# is faster than many small ones, and takes less memory than W * Dv numbers for each query.
SHORT = 8


class Window(NamedTuple):
    """The memory steps that queries are scored with: R windows of W places for G = T / R queries.

    Each query has its own window (R = T), or, where the memory is short, all share one (R = 1).

    Attributes:
        first: `[B, R]` integers, the first place of each window.
        places: `[B, R, W]`, the places, ascending by 1.
        index: `[B, R, W]`, the memory steps at these places; any step beyond the real ones.
        distance: `[B, R, G, W]` floating, the places less the position of the query.
        mask: `[B, R, G, W]`, True = a real step, near enough for the query.
    """

    first: Any
    places: Any
    index: Any
    distance: Any
    mask: Any


def attend_locally(prepared, positions, radius, score, normalizer, seed, fade):
    """Attention of each query to the window around its position, in time and memory O(T * D).

    Args:
        prepared: the `Prepared` inputs of a layer, without heads.
        positions: p_t, `[B, T]`, floating.
        radius: D, a positive integer.
        score: function `(query [..., T, Dq], key [..., S, Dk]) -> scores [..., T, S]`.
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
        weights = upcast(normalizer(scores, mask))
        return weights * ops.cast(gaussian(window.distance, radius), weights.dtype)

    context, weights = weighted_sum(
        near.queries,
        near.keys,
        near.values,
        score,
        near.pairs,
        faded if fade else normalizer,
        near.dropout,
        seed,
        return_attention_scores=True,
    )
    steps = ops.shape(prepared.queries)[1]
    wanted = prepared.return_attention_scores
    weights = spread(weights, window, memory_mask, size, steps) if wanted else None
    return _ungroup(context, steps), weights


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
    length = size if memory_mask is None else _lengths(memory_mask)
    return ops.cast(length, share.dtype) * share


def window_around(positions, radius, memory_mask, size):
    """The places at most `radius` away from each position.

    Args:
        positions: p_t, `[B, T]`, floating.
        radius: D, a positive integer.
        memory_mask: `[B, S]`, True = a real step; None if all are.
        size: S.

    Returns:
        A `Window` with W = 2D + 1, or S where the memory is short. It lies inside of the memory:
        at the ends, places that are too far away stand in for those outside.
    """
    width, steps = 2 * radius + 1, ops.shape(positions)[1]
    short = size <= SHORT * width
    width, rows = _choose(short, size, width), _choose(short, _smaller(1, steps), steps)
    first = ops.cast(ops.ceil(ops.stop_gradient(positions[:, :rows]) - radius), "int32")
    first = ops.maximum(ops.minimum(first, size - width), 0)
    places = index = first[..., None] + ops.arange(width, dtype="int32")
    centers = _group(positions, rows)[..., None]
    distance = ops.cast(places, positions.dtype)[:, :, None] - centers
    mask = ops.abs(distance) <= radius
    if memory_mask is not None:
        real = places < _lengths(memory_mask)[..., None]
        mask = ops.logical_and(mask, real[:, :, None])
        index = take_steps(_real_steps(memory_mask, size), places)
    return Window(first, places, index, distance, mask)


def at_window(prepared, window):
    """Queries with the keys and values of their window, as inputs of `weighted_sum`.

    Args:
        prepared: the `Prepared` inputs of a layer.
        window: the `Window`.

    Returns:
        `Prepared` with queries `[B, R, G, Dq]`, keys and values `[B, R, W, D]`, and `Pairs` of
        `[B, R, G, W]`. What the mask hides from all queries of a window is 0.
    """
    steps, size = ops.shape(prepared.queries)[1], ops.shape(prepared.values)[1]
    rows = ops.shape(window.first)[1]
    mask = window.mask
    if prepared.query_mask is not None:
        mask = ops.logical_and(mask, _group(prepared.query_mask, rows)[..., None])
    pairs = prepared.pairs.merged()
    if pairs.mask is not None:
        mask = ops.logical_and(mask, _entries(pairs.mask, window, steps))
    if prepared.use_causal_mask:  # aligned at the bottom right, see `masks.causal_mask`
        latest = ops.arange(steps, dtype="int32")[None] + (size - steps)
        latest = _group(latest, rows)[..., None]
        mask = ops.logical_and(mask, window.index[:, :, None] <= latest)

    bias = None if pairs.bias is None else _entries(pairs.bias, window, steps)
    pairs = Pairs(mask=mask, bias=bias)
    values = keys = hide(take_steps(prepared.values, window.index), pairs.keys())
    if prepared.keys is not prepared.values:
        keys = hide(take_steps(prepared.keys, window.index), pairs.keys())
    return prepared._replace(
        queries=_group(prepared.queries, rows),
        keys=keys,
        values=values,
        pairs=pairs,
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


def spread(weights, window, memory_mask, size, steps):
    """Weights over the window as weights over the whole memory, 0 outside.

    Args:
        weights: `[B, R, G, W]`.
        window: the `Window`.
        memory_mask: `[B, S]`, True = a real step; None if all are.
        size: S.
        steps: T.

    Returns:
        Weights `[B, T, S]`.
    """
    weights, width = _ungroup(weights, steps), ops.shape(weights)[-1]
    offset = places_of(memory_mask, size)[:, None] - _each_query(window.first[..., None], steps)
    inside = ops.logical_and(offset >= 0, offset < width)
    if memory_mask is not None:
        inside = ops.logical_and(inside, memory_mask[:, None])
    weights = take_entries(weights, ops.clip(offset, 0, width - 1))
    return ops.where(inside, weights, ops.zeros((), weights.dtype))


def _entries(x, window, steps):
    """Entries of a mask or bias that broadcasts to `[B, T, S]`, as `[B, R, G or 1, W]`."""
    batch, size = ops.shape(window.index)[0], ops.shape(x)[-1]
    if x.shape[1] == 1:  # the same for all queries
        shared = x[:, 0] if x.shape[0] == 1 else ops.broadcast_to(x[:, 0], (batch, size))
        return take_steps(shared, window.index)[:, :, None]
    x = ops.broadcast_to(x, (batch, steps, size))
    entries = take_entries(x, _each_query(window.index, steps))
    return _group(entries, ops.shape(window.first)[1])


def _each_query(x, steps):
    """From `[B, R, W]`, what each window has, to `[B, T, W]`, what each query has."""
    batch, rows, width = ops.shape(x)
    if x.shape[1] == steps:
        return x
    x = ops.broadcast_to(x[:, :, None], (batch, rows, steps // _at_least_1(rows), width))
    return _ungroup(x, steps)


def _group(x, rows):
    """`[B, T, ...]` as `[B, R, G, ...]`."""
    if x.shape[1] == 1:  # (XLA could not differentiate a reshaping inside of a step loop.)
        return x[:, :, None]
    batch, steps, *rest = ops.shape(x)
    return ops.reshape(x, (batch, rows, steps // _at_least_1(rows), *rest))


def _ungroup(x, steps):
    """`[B, R, G, ...]` as `[B, T, ...]`."""
    if isinstance(steps, int) and steps == 1:
        return x[:, :, 0]
    batch, _, _, *rest = ops.shape(x)
    return ops.reshape(x, (batch, steps, *rest))


def _real_steps(mask, size):
    """Where the real steps stand, `[B, S]`: the inverse of `places_of`, then 0."""
    batch, steps = ops.shape(mask)[0], ops.arange(size, dtype="int32")
    # Masked steps go behind, each to a place of its own: ONNX does not add what falls together.
    places = ops.where(mask, places_of(mask, size), size + steps)
    rows = ops.broadcast_to(ops.arange(batch, dtype="int32")[:, None], (batch, size))
    index = ops.stack([rows, places], axis=-1)
    steps = ops.broadcast_to(steps, (batch, size))
    return ops.scatter(index, steps, (batch, 2 * size))[:, :size]


def _lengths(mask):
    """The number of real steps, `[B, 1]`."""
    return ops.sum(ops.cast(mask, "int32"), axis=-1, keepdims=True)


def _choose(condition, yes, no):
    """One of two sizes, where they differ and the condition may be known in the graph only."""
    if isinstance(condition, bool):
        return yes if condition else no
    same = isinstance(yes, int) and isinstance(no, int) and yes == no
    return yes if same else ops.where(condition, yes, no)


def _smaller(a, b):
    return min(a, b) if isinstance(b, int) else ops.minimum(a, b)


def _at_least_1(x):
    return max(x, 1) if isinstance(x, int) else ops.maximum(x, 1)

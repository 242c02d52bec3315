"""The cache of self-attention: the keys and values of the steps so far, as plain values.

A cache is a dictionary of tensors that is passed in and returned. Three kinds, told apart by how
they take up new steps:

    grown     S is the number of steps so far; new ones are put behind
    static    S is fixed; "length" slots are filled, new steps go into the next
    rolling   S is fixed; the oldest steps drop out (of a sliding window)
"""

import keras
from keras import ops

from keras_attention import checks


def start(batch_size, keys_shape, values_shape, dtype, max_length=None, rolling=None):
    """A cache without steps.

    Args:
        batch_size: B, a number or a scalar tensor.
        keys_shape, values_shape: shapes without the batch, `(..., H)`, the axis of steps, which
            lies before the last, left out.
        dtype: dtype of keys and values.
        max_length: the number of slots of a static cache; None for a grown one.
        rolling: the number of slots of a rolling cache; None if it is none.

    Returns:
        A dictionary of tensors: "keys" `[B, ..., S, H]`, "values" `[B, ..., S, Hv]`, "mask"
        `[B, S]` (the filled slots), "positions" `[B, S]`, "next" `[B]` (the position of the next
        step) and, in a static cache, the scalar "length".
    """
    slots = rolling if rolling is not None else (max_length or 0)
    cache = {
        "keys": ops.zeros((batch_size, *keys_shape[:-1], slots, keys_shape[-1]), dtype),
        "values": ops.zeros((batch_size, *values_shape[:-1], slots, values_shape[-1]), dtype),
        "mask": ops.zeros((batch_size, slots), "bool"),
        "positions": ops.zeros((batch_size, slots), "int32"),
        "next": ops.zeros((batch_size,), "int32"),
    }
    if rolling is None and max_length is not None:
        cache["length"] = ops.zeros((), "int32")
    return cache


def next_positions(cache, mask, size):
    """Positions of new steps, and the cache's count behind them.

    Padded steps have no position of their own: so the real ones of samples that are padded on the
    left count from 0.

    Args:
        cache: the cache.
        mask: `[B, T]`, the real steps, or None.
        size: T.

    Returns:
        Positions `[B, T]`, and "next" `[B]` after them.
    """
    first = cache["next"][:, None]
    if mask is None:
        return first + ops.arange(size, dtype="int32"), cache["next"] + size
    counts = ops.cumsum(ops.cast(mask, "int32"), axis=1)
    return first + ops.maximum(counts - 1, 0), cache["next"] + ops.sum(
        ops.cast(mask, "int32"), axis=1
    )


def append(cache, keys, values, mask, positions, following, rolling=None):
    """Takes new steps into the cache.

    Args:
        cache: the cache.
        keys, values: `[B, ..., T, H]`, `[B, ..., T, Hv]`.
        mask: `[B, T]`, the real steps, or None.
        positions: `[B, T]` positions of the new steps.
        following: `[B]` position of the step after them.
        rolling: number of slots of a rolling cache, None of the others.

    Returns:
        `(cache, seen)`: the new cache, and a dictionary with the "keys", "values", "mask" and
        "positions" that the new steps may attend to. They are those of the cache but for a rolling
        one, which keeps no more than its slots.

    Raises:
        ValueError: if shapes or structure are those of another layer or batch, or a static cache
            has no room (in a TensorFlow graph an error when it runs).
    """
    is_padded = mask is not None
    mask = mask if is_padded else ops.ones_like(positions, "bool")
    new = {"keys": keys, "values": values, "mask": mask, "positions": positions}
    _check_sizes(cache, new)
    new = {name: _fit(x, cache[name]) for name, x in new.items()}
    if "length" in cache:
        length = cache["length"]
        _check_room(length, ops.shape(positions)[1], ops.shape(cache["mask"])[1])
        seen = {name: _write(cache[name], x, length) for name, x in new.items()}
        return {**seen, "next": following, "length": length + ops.shape(positions)[1]}, seen
    seen = {name: ops.concatenate([cache[name], x], axis=_steps_axis(x)) for name, x in new.items()}
    if rolling is None:
        return {**seen, "next": following}, seen
    return {**_newest(seen, rolling, is_padded), "next": following}, seen


def own_past(cache, origins):
    """Which slots each of K beams sees that share a cache: those of its own past.

    A step of the beams puts K slots behind those that were there when they began, which all of
    them see.

    Args:
        cache: a grown or static cache of B rows, before the step.
        origins: `[B, K, L]` integers: the beam whose step s is the past of beam k; -1 from the
            step behind the one being made on.

    Returns:
        `[B, K, S]` booleans, S the slots with those of the step. A call takes it as the entry
        "visible" of the cache.
    """
    beams, length = origins.shape[1:]
    slots = ops.shape(cache["mask"])[1]
    if "length" in cache:
        steps = length
    else:
        slots = slots + beams
        steps = ops.sum(ops.cast(ops.any(origins >= 0, axis=(0, 1)), "int32"))
    index = ops.arange(slots, dtype="int32") - (slots - steps * beams)
    made_in = ops.take(origins, ops.maximum(index // beams, 0), axis=2)
    return ops.logical_or(ops.equal(made_in, index % beams), index < 0)


def split_visible(cache):
    """A cache without its entry "visible", see `own_past`, and that, or None."""
    if not isinstance(cache, dict) or "visible" not in cache:
        return cache, None
    return {name: x for name, x in cache.items() if name != "visible"}, cache["visible"]


def _newest(seen, size, is_padded):
    """The last `size` real steps of those seen; padding drops out first."""
    steps = ops.shape(seen["mask"])[1]
    if is_padded:
        index = ops.arange(steps, dtype="int32")
        order = ops.argsort(ops.where(seen["mask"], index, index - steps), axis=1)
        seen = {name: _reorder(x, order) for name, x in seen.items()}
    first = steps - size
    kept = {
        name: x[..., first:, :] if len(x.shape) > 2 else x[:, first:] for name, x in seen.items()
    }
    for x in kept.values():  # the same number of slots as before
        if hasattr(x, "set_shape"):
            x.set_shape((*x.shape[:-2], size, x.shape[-1]) if len(x.shape) > 2 else (None, size))
    return kept


def _reorder(x, order):
    """Steps of x `[B, S]` or `[B, ..., S, H]` in the order `[B, S]`."""
    if len(x.shape) == 2:
        return ops.take_along_axis(x, order, axis=1)
    while len(order.shape) < len(x.shape) - 1:
        order = ops.expand_dims(order, 1)
    return ops.take_along_axis(x, order[..., None], axis=-2)


def _steps_axis(x):
    return -2 if len(x.shape) > 2 else 1


def _write(old, new, length):
    """`old` with `new` steps from slot `length` on; XLA does it in place."""
    start = [ops.zeros_like(length)] * len(old.shape)  # of one type, as JAX wants
    start[_steps_axis(old)] = length
    return ops.slice_update(old, start, new)


def _check_room(length, steps, slots):
    """Raises if `steps` more do not fit; where the number is known only then, when a graph runs."""
    message = f"The cache has {slots} slots (`max_length`), too few for"
    try:
        filled, more = int(length), int(steps)
    except Exception:  # not known yet
        if keras.backend.backend() == "tensorflow":
            import tensorflow as tf

            tf.debugging.assert_less_equal(length + steps, slots, f"{message} the steps so far.")
        return
    if filled + more > slots:
        raise ValueError(f"{message} {filled} steps in it and {more} more.")


def check_structure(cache):
    """Raises a ValueError unless `cache` is a dictionary of the tensors of a cache `[B, ...]`."""
    wanted = {"keys", "values", "mask", "positions", "next"}
    if not isinstance(cache, dict) or set(cache) - {"length"} != wanted:
        got = sorted(cache) if isinstance(cache, dict) else type(cache).__name__
        raise ValueError(
            "`cache` must be what `start_cache` or the last call returned: a dictionary with the "
            f"entries {sorted(wanted)}. Received: {got}."
        )


def _check_sizes(cache, new):
    """Raises unless the sizes of new steps are those of the cache."""
    for name, x in new.items():
        axis = _steps_axis(x) % len(x.shape)
        shapes = [
            tuple(size for i, size in enumerate(y.shape) if i != axis) for y in (cache[name], x)
        ]
        if len(shapes[0]) != len(shapes[1]) or any(
            None not in pair and pair[0] != pair[1] for pair in zip(*shapes, strict=True)
        ):
            raise ValueError(
                f"`cache` is of another layer or batch: its {name} have shape "
                f"{tuple(cache[name].shape)}, those of the new steps {tuple(x.shape)}."
            )


def _fit(x, like):
    """`x` of the dtype of `like`, and of its batch where that is only known when a graph runs."""
    return checks.fit_batch(ops.cast(x, like.dtype), like)

"""Where queries and keys stand: the positions that masks, rotations and biases read."""

from typing import Any, NamedTuple

import keras
from keras import ops

from keras_attention import checks
from keras_attention.positions.turns import as_positions, fit_steps


class Places(NamedTuple):
    """Positions of the queries and keys of a call.

    Attributes:
        queries: integers `[T]`, or `[B, T]` where samples differ.
        keys: integers `[S]` or `[B, S]`.
        given: whether they were given, or come from a cache; else they are `counted`.
    """

    queries: Any
    keys: Any
    given: bool = True

    def masks(self, causal, window):
        """The causal mask and the window that go by them, `[T, S]` or `[B, T, S]`, or None.

        Args:
            causal: whether there is a causal mask.
            window: the window, or None.

        Returns:
            The two masks, as `masks.causal_mask` and `masks.window_mask` for counted places.
        """
        distance = self.keys[..., None, :] - self.queries[..., :, None]
        return (
            ops.less_equal(distance, 0) if causal else None,
            None if window is None else ops.less(ops.abs(distance), window),
        )

    def grid(self, rank):
        """Indices that broadcast to scores `[B, ..., N, T, S]` of this rank, heads aside.

        Args:
            rank: rank of the scores.

        Returns:
            Query positions `[1 or B, 1..., T, 1]` and key positions `[1 or B, 1..., 1, S]`.
        """
        return (_to_rank(self.queries[..., None], rank), _to_rank(self.keys[..., None, :], rank))


def counted(query_size, key_size):
    """Positions where none are given: keys from 0, queries so that the last stands at the last key.

    Args:
        query_size, key_size: T and S, numbers or scalar tensors.

    Returns:
        `Places` of `[T]` and `[S]`.
    """
    keys = ops.arange(key_size, dtype="int32")
    queries = ops.arange(query_size, dtype="int32") + (key_size - query_size)
    return Places(queries, keys, given=False)


def fit_positions(name, positions, x):
    """Positions that a caller gave, if there is one for each step.

    Args:
        name: what error messages call them.
        positions: integers `[T]` or `[B, T]`, or None.
        x: the steps, `[B, ..., T, D]`.

    Returns:
        The positions as int32, or None.

    Raises:
        ValueError: if they are floating, or of another shape.
    """
    return None if positions is None else fit_steps(as_positions(positions, name), x, name)


def get_function(name, function):
    """A user's function of scores `[B, N, T, S]` or indices, also out of a config.

    Args:
        name: what error messages call it.
        function: a function, what Keras makes of one that it saves, or None.

    Returns:
        The function.

    Raises:
        ValueError: if it is not callable.
    """
    if isinstance(function, dict):
        function = keras.saving.deserialize_keras_object(function)
    if function is not None and not callable(function):
        raise ValueError(f"`{name}` must be a function. Received: {function!r}.")
    return function


def modify_scores(function, scores, places, heads):
    """Applies a user's `(scores, batch, head, query_index, key_index) -> scores`.

    Args:
        function: the function; indices are integers that broadcast to the scores.
        scores: `[B, ..., N, T, S]`.
        places: `Places`.
        heads: N.

    Returns:
        Scores of the same shape.

    Raises:
        ValueError: if the function returns another shape.
    """
    rank = len(scores.shape)
    indices = (*_batch_and_head(ops.shape(scores)[0], heads, rank), *places.grid(rank))
    modified = _as_result("score_modifier", function(scores, *indices))
    if not keras.backend.is_float_dtype(keras.backend.standardize_dtype(modified.dtype)):
        raise ValueError(
            "`score_modifier` must return floating scores; booleans belong in `mask_function`. "
            f"Received dtype {keras.backend.standardize_dtype(modified.dtype)}."
        )
    if len(modified.shape) != rank or any(
        None not in pair and pair[0] != pair[1]
        for pair in zip(modified.shape, scores.shape, strict=True)
    ):
        raise ValueError(
            "`score_modifier` must return scores of the shape that it was given, "
            f"{tuple(scores.shape)}. Received shape {tuple(modified.shape)}."
        )
    return ops.cast(modified, scores.dtype)


def mask_from_function(function, places, batch, heads, rank):
    """The mask of a user's function `(batch, head, query_index, key_index) -> boolean`.

    Args:
        function: the function; indices are integers that broadcast to the scores.
        places: `Places`.
        batch: B, a number or a scalar tensor.
        heads: N.
        rank: rank of the scores.

    Returns:
        A boolean mask that broadcasts to the scores `[B, ..., N, T, S]`.

    Raises:
        ValueError: if the function returns something else.
    """
    indices = (*_batch_and_head(batch, heads, rank), *places.grid(rank))
    mask = _as_result("mask_function", function(*indices))
    dtype = keras.backend.standardize_dtype(mask.dtype)
    if dtype != "bool" or len(mask.shape) not in (0, rank):
        raise ValueError(
            "`mask_function` must return booleans (True = may attend) that broadcast to the "
            f"scores, of rank {rank}. Received dtype {dtype}, shape {tuple(mask.shape)}."
        )
    queries, keys = places.grid(rank)
    if len(mask.shape):
        sizes = (*(None,) * (rank - 3), heads, queries.shape[-2], keys.shape[-1])
        checks.check_broadcast("mask_function", mask.shape, sizes)
    return ops.logical_and(mask, ops.ones_like(keys, "bool"))  # an entry for each key


def _as_result(name, result):
    """What a user's function returned, as a tensor, or an error that names the function."""
    try:
        return ops.convert_to_tensor(result)
    except (TypeError, ValueError):
        raise ValueError(f"`{name}` must return a tensor. Received: {result!r}.") from None


def _batch_and_head(batch, heads, rank):
    batch = ops.reshape(ops.arange(batch, dtype="int32"), (-1, *(1,) * (rank - 1)))
    return batch, ops.reshape(ops.arange(heads, dtype="int32"), (-1, 1, 1))


def _to_rank(x, rank):
    """`[T, S]` or `[B, T, S]` with axes of size 1 after B."""
    x = x if len(x.shape) == 3 else x[None]
    for _ in range(rank - 3):
        x = ops.expand_dims(x, 1)
    return x

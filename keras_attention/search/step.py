"""The caller's step function: how a search calls it, and what it may be given."""

import math
from numbers import Integral, Real

import keras
from keras import ops

from keras_attention.checks import check_positive


class Step:
    """Calls `step(tokens, state)`, or `step(tokens, state, memory)`, and checks what it returns.

    Args:
        function: the caller's function.
        memory: structure of tensors with the batch `[N, ...]` first, or None.
    """

    def __init__(self, function, memory):
        self.function = function
        self.more = () if memory is None else (memory,)

    def __call__(self, tokens, state, origins=None):
        """Logits `[N, V]` in float32, weights `[N, S]` or None, and the state, of one step.

        With `origins` `[B, K, L]` the step gets all beams of a row at once, N = B K.
        """
        if origins is None:
            result = self.function(tokens, state, *self.more)
        else:
            together = ops.reshape(tokens, (-1, origins.shape[1]))
            result = self.function(together, state, *self.more, origins=origins)
        if not isinstance(result, tuple) or len(result) not in (2, 3):
            count = f" of {len(result)}" if isinstance(result, tuple) else ""
            raise ValueError(
                "`step` must return (logits, state) or (logits, weights, state). Received "
                f"{type(result).__name__}{count}."
            )
        logits, *weights, new_state = result
        if origins is not None:
            logits, *weights = (_flat_beams(x, origins) for x in (logits, *weights))
        _check_rows("logits of shape [B, V]", logits, tokens.shape[0])
        for x in weights:
            _check_rows("weights of shape [B, S]", x, tokens.shape[0])
        parts, wanted = keras.tree.flatten(new_state), len(keras.tree.flatten(state))
        if len(parts) != wanted:
            raise ValueError(
                f"`step` must return a state of the structure it was given, {wanted} tensors. "
                f"Received {len(parts)}."
            )
        new_state = keras.tree.pack_sequence_as(state, parts)
        return ops.cast(logits, "float32"), weights[0] if weights else None, new_state


def _flat_beams(x, origins):
    """`[B, K, ...]` to `[B K, ...]`."""
    if len(x.shape) != 3 or x.shape[1] != origins.shape[1]:
        raise ValueError(
            "`step` must return logits [B, K, V] and weights [B, K, S] where `reorder_state` is "
            f"False, K = {origins.shape[1]}. Received shape {tuple(x.shape)}."
        )
    return ops.reshape(x, (-1, *ops.shape(x)[2:]))


def _check_rows(expected, x, batch):
    if len(x.shape) != 2 or (None not in (batch, x.shape[0]) and batch != x.shape[0]):
        raise ValueError(
            f"`step` must return {expected}, B = {batch}. Received shape {tuple(x.shape)}."
        )


def log_probabilities(logits, allowed=None):
    """The model's log-probabilities; -inf for what is not allowed.

        log p(y) = logits_y - log sum over all y' of exp(logits_y')

    Args:
        logits: `[N, V]` in float32.
        allowed: boolean, broadcastable to the logits, or None.

    Returns:
        `[N, V]`. What is allowed does not change the probabilities of the rest. A row that is no
        distribution (it holds a NaN or +inf, or -inf only) gives no token: it is all -inf.
    """
    normalizer = ops.logsumexp(logits, axis=-1, keepdims=True)
    possible = ops.isfinite(normalizer)
    if allowed is not None:
        possible = ops.logical_and(possible, allowed)
    return ops.where(possible, logits - normalizer, -math.inf)


def repeat_rows(structure, times):
    """Each row of each tensor `[B, ...]` `times` times in turn; scalars belong to all rows."""
    if structure is None:
        return None
    return keras.tree.map_structure(
        lambda x: ops.repeat(x, times, axis=0) if len(x.shape) else x, structure
    )


def take_rows(structure, rows):
    """Rows `[N]` of each tensor `[M, ...]`; scalars belong to all rows."""
    return keras.tree.map_structure(
        lambda x: ops.take(x, rows, axis=0) if len(x.shape) else x, structure
    )


def as_start_tokens(start_tokens):
    """`[B]` integers as an int32 tensor, or a ValueError."""
    tokens = ops.convert_to_tensor(start_tokens)
    dtype = keras.backend.standardize_dtype(tokens.dtype)
    if len(tokens.shape) != 1 or not dtype.startswith(("int", "uint")):
        raise ValueError(
            f"`start_tokens` must be integers of shape [B]. Received dtype {dtype}, shape "
            f"{tuple(tokens.shape)}."
        )
    return ops.cast(tokens, "int32")


def as_batch(name, structure, tokens):
    """A structure of tensors whose first axis, where it has one, is the batch of `tokens`."""
    if structure is None:
        return None
    structure = keras.tree.map_structure(ops.convert_to_tensor, structure)
    batch = tokens.shape[0]
    for x in keras.tree.flatten(structure):
        if len(x.shape) and None not in (batch, x.shape[0]) and x.shape[0] != batch:
            raise ValueError(
                f"Each tensor of `{name}` must have the batch of `start_tokens` first, B = "
                f"{batch}. Received shape {tuple(x.shape)}."
            )
    return structure


def check_token(name, token):
    """`token`, if it is an integer; else a ValueError."""
    if isinstance(token, bool) or not isinstance(token, Integral):
        raise ValueError(f"`{name}` must be an integer, a token id. Received: {token!r}.")
    return int(token)


def check_weight(name, number):
    """`number`, if it is a finite number of at least 0; else a ValueError."""
    real = isinstance(number, Real) and not isinstance(number, bool)
    if not real or not 0 <= number < math.inf:
        raise ValueError(f"`{name}` must be a finite number, at least 0. Received: {number!r}.")
    return float(number)


def check_lengths(max_length, min_length):
    """Both, if they are integers with 0 <= min_length <= max_length and 1 <= max_length."""
    max_length = check_positive("max_length", max_length)
    count = isinstance(min_length, Integral) and not isinstance(min_length, bool)
    if not count or not 0 <= min_length <= max_length:
        raise ValueError(
            f"`min_length` must be an integer from 0 to `max_length`, {max_length}. "
            f"Received: {min_length!r}."
        )
    return max_length, int(min_length)

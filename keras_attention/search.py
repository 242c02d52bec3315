"""Search for an output sequence over a step function; runs in the graph."""

from numbers import Integral
from typing import Any, NamedTuple

import keras
from keras import ops

from keras_attention.checks import check_positive
from keras_attention.loops import loop_steps


class SearchResult(NamedTuple):
    """What a search found.

    Attributes:
        ids: `[B, L]` token ids; after the end token, the padding token.
        lengths: `[B]` number of tokens before the end token.
        scores: `[B]` sum of the log-probabilities of the tokens, the end token included.
        attention_scores: `[B, L, S]` attention weights of each step, 0 behind the end token; None
            if the step gives none.
    """

    ids: Any
    lengths: Any
    scores: Any
    attention_scores: Any


def greedy_search(step, state, start_tokens, end_token, max_length, pad_token=0):
    """Takes the most probable token at each step, until the end token or `max_length`.

        y_t = argmax_y p(y | y_<t, memory),  score = sum_t log p(y_t | y_<t, memory)

    Args:
        step: function `(tokens [B], state) -> (logits [B, V], state)` or `-> (logits, weights
            [B, S], state)`.
        state: structure of tensors with the batch first; the step keeps its structure, shapes
            and dtypes.
        start_tokens: `[B]` integers, the tokens put into the first step.
        end_token: the id that ends a sequence.
        max_length: L, the largest number of steps, an integer of at least 1.
        pad_token: the id behind the end token.

    Returns:
        A `SearchResult`. The loop stops as soon as all sequences have ended.

    Raises:
        ValueError: if `start_tokens` is not `[B]` integers, `max_length` is no positive integer,
            or the step returns neither 2 nor 3 values.

    Example: a model that counts up to 3, where it ends

    >>> import numpy as np
    >>> result = greedy_search(
    ...     lambda tokens, state: (10.0 * keras.ops.one_hot(tokens + 1, 4), state),
    ...     state=[], start_tokens=np.array([0, 1]), end_token=3, max_length=5)
    >>> result.ids.numpy()
    array([[1, 2, 3, 0, 0],
           [2, 3, 0, 0, 0]], dtype=int32)
    >>> result.lengths.numpy()
    array([2, 1], dtype=int32)
    """
    start_tokens = ops.convert_to_tensor(start_tokens)
    if len(start_tokens.shape) != 1 or keras.backend.is_float_dtype(start_tokens.dtype):
        raise ValueError(
            "`start_tokens` must be integers of shape [B]. Received dtype "
            f"{keras.backend.standardize_dtype(start_tokens.dtype)}, shape {start_tokens.shape}."
        )
    max_length = check_positive("max_length", max_length)
    for name, token in (("end_token", end_token), ("pad_token", pad_token)):
        if isinstance(token, bool) or not isinstance(token, Integral):
            raise ValueError(f"`{name}` must be an integer, a token id. Received: {token!r}.")

    def search_step(_, carry):
        tokens, lengths, scores, ended, state = carry
        logits, weights, state = _run_step(step, tokens, state)
        best, chosen = ops.top_k(logits, 1)  # an argmax that every exporter knows
        chosen = ops.cast(chosen[:, 0], "int32")
        log_probability = best[:, 0] - ops.logsumexp(logits, axis=-1)
        scores = scores + ops.where(ended, ops.zeros_like(scores), log_probability)
        outputs = [chosen]
        if weights is not None:
            outputs.append(ops.where(ended[:, None], ops.zeros_like(weights), weights))
        ended = ops.logical_or(ended, ops.equal(chosen, end_token))  # from now on
        lengths = lengths + ops.cast(ops.logical_not(ended), "int32")
        return outputs, (chosen, lengths, scores, ended, state)

    tokens = ops.cast(start_tokens, "int32")
    zeros = ops.zeros_like(tokens)
    carry = (tokens, zeros, ops.cast(zeros, "float32"), ops.zeros_like(tokens, "bool"), state)
    outputs, carry = loop_steps(search_step, carry, max_length, stop=lambda c: ops.all(c[3]))
    ids, weights = (*outputs, None)[:2]
    lengths = carry[1]
    behind_end = ops.arange(max_length, dtype="int32") > lengths[:, None]
    ids = ops.where(behind_end, ops.full_like(ids, pad_token), ids)
    return SearchResult(ids, lengths, carry[2], weights)


def _run_step(step, tokens, state):
    """Logits in float32, weights or None, and the state, of one step."""
    result = step(tokens, state)
    if not isinstance(result, tuple) or len(result) not in (2, 3):
        raise ValueError(
            "`step` must return (logits, state) or (logits, weights, state). Received "
            f"{type(result).__name__}{f' of {len(result)}' if isinstance(result, tuple) else ''}."
        )
    logits, *weights, new_state = result
    batch, known = tokens.shape[0], logits.shape[0]
    if len(logits.shape) != 2 or (None not in (batch, known) and batch != known):
        raise ValueError(
            f"`step` must return logits of shape [B, V], B = {batch}. "
            f"Received shape {tuple(logits.shape)}."
        )
    new_state = keras.tree.pack_sequence_as(state, keras.tree.flatten(new_state))
    return ops.cast(logits, "float32"), weights[0] if weights else None, new_state

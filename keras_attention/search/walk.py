"""The loop of the searches that follow one sequence for each row."""

import math

from keras import ops

from keras_attention.loops import loop_steps
from keras_attention.search.result import SearchResult
from keras_attention.search.step import log_probabilities


def walk(step, choose, constraints, tokens, state, pad_token):
    """Puts tokens behind each other until the end token, or `max_length`.

    Args:
        step: a `Step`.
        choose: function `(log_probabilities [B, V], index) -> tokens [B]`; -inf is impossible.
        constraints: `Constraints`.
        tokens: `[B]` int32, the tokens put into the first step.
        state: structure of tensors with the batch first.
        pad_token: the id behind the end token.

    Returns:
        A `SearchResult`. A row with no possible token ends there, with score -inf.
    """
    length = constraints.max_length
    places = ops.arange(length, dtype="int32")

    def walk_step(index, carry):
        tokens, ids, lengths, scores, ended, state = carry
        logits, weights, state = step(tokens, state)
        gains = log_probabilities(logits, constraints.allowed(logits, ids, index))
        tokens = choose(gains, index)
        gain = ops.take_along_axis(gains, tokens[:, None], axis=1)[:, 0]
        # A sum of rounded numbers may be a little above the logarithm of 1.
        gain = ops.minimum(gain, ops.zeros_like(gain))
        scores = scores + ops.where(ended, ops.zeros_like(gain), gain)
        ended = ops.logical_or(ended, ops.equal(gain, -math.inf))
        here = ops.logical_and(ops.equal(places, index), ops.logical_not(ended)[:, None])
        ids = ops.where(here, tokens[:, None], ids)
        outputs = []
        if weights is not None:
            outputs.append(ops.where(ended[:, None], ops.zeros_like(weights), weights))
        if constraints.end_token is not None:  # from the next step on
            ended = ops.logical_or(ended, ops.equal(tokens, constraints.end_token))
        lengths = lengths + ops.cast(ops.logical_not(ended), "int32")
        return outputs, (tokens, ids, lengths, scores, ended, state)

    zeros = ops.zeros_like(tokens)
    ids = ops.zeros_like(tokens)[:, None] + ops.full((1, length), pad_token, "int32")
    carry = (tokens, ids, zeros, ops.cast(zeros, "float32"), ops.zeros_like(tokens, "bool"), state)
    outputs, carry = loop_steps(walk_step, carry, length, stop=lambda c: ops.all(c[4]))
    _, ids, lengths, scores, _, _ = carry
    return SearchResult(ids, lengths, scores, outputs[0] if outputs else None)

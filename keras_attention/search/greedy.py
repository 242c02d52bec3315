"""Greedy search."""

from keras import ops

from keras_attention.search.constraints import Constraints
from keras_attention.search.largest import largest
from keras_attention.search.step import Step, as_batch, as_start_tokens, check_token
from keras_attention.search.walk import walk


def greedy_search(
    step,
    state,
    start_tokens,
    end_token,
    max_length,
    pad_token=0,
    memory=None,
    min_length=0,
    forbidden_tokens=(),
    no_repeat_ngram=0,
):
    """Takes the most probable token at each step, until the end token or `max_length`.

        y_t = argmax_y p(y | y_<t, memory),  score = sum_t log p(y_t | y_<t, memory)

    The constraints (minimum length, forbidden tokens, n-grams) restrict the choice; the score
    remains the model's log-probability, with the softmax over all tokens.

    Args:
        step: function `(tokens [B], state) -> (logits [B, V], state)` or `-> (logits, weights
            [B, S], state)`; with `memory` it is called as `step(tokens, state, memory)`.
        state: structure of tensors with the batch first, or scalars; the step keeps its
            structure, shapes and dtypes.
        start_tokens: `[B]` integers, the tokens put into the first step.
        end_token: the id that ends a sequence; None if none does.
        max_length: L, the largest number of steps, an integer of at least 1.
        pad_token: the id behind the end token.
        memory: structure of tensors with the batch first, which the step reads and does not
            change.
        min_length: the end token may not come before so many tokens, unless nothing else is
            possible.
        forbidden_tokens: ids that never appear.
        no_repeat_ngram: n, no n tokens in a row occur twice; 0 for no such rule.

    Returns:
        A `SearchResult`. The loop stops as soon as all sequences have ended. A row for which no
        token is possible (all are forbidden, or have a logit of -inf, or a logit is NaN) ends
        there without an end token, with score -inf.

    Raises:
        ValueError: if an argument has a wrong type or value, the step returns something else, or
            its logits have another shape.

    Example: a model that counts up to 3, where it ends

    >>> import numpy as np
    >>> import keras
    >>> result = greedy_search(
    ...     lambda tokens, state: (10.0 * keras.ops.one_hot(tokens + 1, 4), state),
    ...     state=[], start_tokens=np.array([0, 1]), end_token=3, max_length=5)
    >>> result.ids.numpy()
    array([[1, 2, 3, 0, 0],
           [2, 3, 0, 0, 0]], dtype=int32)
    >>> result.lengths.numpy()
    array([2, 1], dtype=int32)
    """
    constraints = Constraints(end_token, max_length, min_length, forbidden_tokens, no_repeat_ngram)
    pad_token = check_token("pad_token", pad_token)
    tokens = as_start_tokens(start_tokens)
    state, memory = as_batch("state", state, tokens), as_batch("memory", memory, tokens)
    return walk(Step(step, memory), _most_probable, constraints, tokens, state, pad_token)


def _most_probable(log_probabilities, _):
    _, chosen = largest(log_probabilities, 1)  # an argmax that every exporter knows
    return ops.cast(chosen[:, 0], "int32")

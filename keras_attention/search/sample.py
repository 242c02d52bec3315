"""Drawing sequences from the model's distribution."""

from numbers import Integral, Real

import keras
import numpy as np
from keras import ops

from keras_attention.checks import check_positive
from keras_attention.search.constraints import Constraints
from keras_attention.search.largest import largest
from keras_attention.search.result import SearchResult
from keras_attention.search.step import (
    Step,
    as_batch,
    as_start_tokens,
    check_token,
    check_weight,
    repeat_rows,
)
from keras_attention.search.walk import walk


def sample(
    step,
    state,
    start_tokens,
    end_token,
    max_length,
    temperature=1.0,
    top_k=None,
    top_p=None,
    seed=None,
    num_results=None,
    pad_token=0,
    memory=None,
    min_length=0,
    forbidden_tokens=(),
    no_repeat_ngram=0,
):
    """Draws each token from the model's distribution, until the end token or `max_length`.

        y_t ~ q,  q(y) = p(y | y_<t, memory)^(1 / temperature) / Z  within the tokens kept
        score = sum_t log p(y_t | y_<t, memory)

    Kept are, in this order: what the constraints allow; the `top_k` most probable of these; the
    nucleus of [Holtzman et al., 2020](https://arxiv.org/abs/1904.09751), equation 2: the smallest
    set of the most probable of these whose share of their probability, at this temperature, is at
    least `top_p`. Scores are log-probabilities under the model, with temperature 1 and all tokens.

    Args:
        step: function `(tokens [B], state) -> (logits [B, V], state)` or `-> (logits, weights
            [B, S], state)`; with `memory` it is called as `step(tokens, state, memory)`.
        state: structure of tensors with the batch first, or scalars; the step keeps its
            structure, shapes and dtypes.
        start_tokens: `[B]` integers, the tokens put into the first step.
        end_token: the id that ends a sequence; None if none does.
        max_length: L, the largest number of steps, an integer of at least 1.
        temperature: at least 0; below 1 the probable tokens come more often than the model says,
            above 1 less often; 0 is greedy search.
        top_k: how many tokens to keep, at least 1; None for all.
        top_p: probability to keep, above 0 and at most 1; None for all.
        seed: an integer, for the same draws each time; a `keras.random.SeedGenerator`, for other
            draws each time; or None, for the global seed generator.
        num_results: N, how many sequences to draw for each row, or None for one without an axis
            of its own. State and memory are repeated here, so that the step sees `[B N]` tokens.
        pad_token: the id behind the end token.
        memory: structure of tensors with the batch first, which the step reads and does not
            change.
        min_length: the end token may not come before so many tokens, unless nothing else is
            possible.
        forbidden_tokens: ids that never appear.
        no_repeat_ngram: n, no n tokens in a row occur twice; 0 for no such rule.

    Returns:
        A `SearchResult`; with `num_results` its tensors are `[B, N, ...]`. Each step of a row
        takes one random number, which depends on the seed, the place of the row in the batch and
        the step, not on the other rows. (XLA makes other numbers than TensorFlow does without
        it.) A row for which no token is possible ends there, with score -inf.

    Raises:
        ValueError: if an argument has a wrong type or value, the step returns something else, or
            its logits have another shape.

    Example: coins that fall on one side, 1, three times out of four

    >>> import numpy as np
    >>> coin = np.log([[0.25, 0.75]] * 1000)
    >>> result = sample(lambda tokens, state: (coin, state), state=[],
    ...                 start_tokens=np.zeros(1000, "int32"), end_token=None, max_length=9, seed=1)
    >>> bool(abs(np.mean(result.ids) - 0.75) < 0.02)
    True
    """
    constraints = Constraints(end_token, max_length, min_length, forbidden_tokens, no_repeat_ngram)
    pad_token = check_token("pad_token", pad_token)
    count = 1 if num_results is None else check_positive("num_results", num_results)
    seed = _check_seed(seed)
    tokens = as_start_tokens(start_tokens)
    state, memory = as_batch("state", state, tokens), as_batch("memory", memory, tokens)
    if count > 1:
        tokens, state, memory = (repeat_rows(x, count) for x in (tokens, state, memory))
    # All at once: a random generator would be a side effect in the loop.
    numbers = keras.random.uniform((ops.shape(tokens)[0], max_length), dtype="float32", seed=seed)
    choose = _Draw(numbers, temperature, top_k, top_p)
    result = walk(Step(step, memory), choose, constraints, tokens, state, pad_token)
    return result if num_results is None else _by_row(result, count)


class _Draw:
    """Draws tokens `[B]` from log-probabilities `[B, V]`, with numbers `[B, L]` from [0, 1)."""

    def __init__(self, numbers, temperature, top_k, top_p):
        self.numbers = numbers
        temperature = check_weight("temperature", temperature)
        greedy = temperature < np.finfo("float32").tiny
        self.temperature = 1.0 if greedy else temperature
        self.top_k = top_k if top_k is None else check_positive("top_k", top_k)
        self.top_k = 1 if greedy else self.top_k
        is_number = isinstance(top_p, Real) and not isinstance(top_p, bool)
        if top_p is not None and not (is_number and 0 < top_p <= 1):
            raise ValueError(f"`top_p` must be above 0 and at most 1. Received: {top_p!r}.")
        self.top_p = None if top_p in (None, 1) else float(top_p)

    def __call__(self, log_probabilities, index):
        order = None
        if self.top_k or self.top_p:
            size = log_probabilities.shape[-1]
            if size is None:
                raise ValueError("`step` must return logits whose last axis, V, is known.")
            count = min(self.top_k or size, size)
            log_probabilities, order = largest(log_probabilities, count)
        chosen = self._place(self._shares(log_probabilities), index)
        if order is not None:
            chosen = ops.take_along_axis(ops.cast(order, "int32"), chosen, axis=1)
        return chosen[:, 0]

    def _shares(self, log_probabilities):
        """What each token weighs in the draw; sorted where there is a `top_p`."""
        highest, _ = largest(log_probabilities, 1)  # `ops.max` refuses an empty batch
        highest = ops.where(ops.isfinite(highest), highest, ops.zeros_like(highest))
        shares = ops.exp((log_probabilities - highest) / self.temperature)
        if self.top_p:
            sums = ops.cumsum(shares, axis=-1)
            before = ops.pad(sums[:, :-1], [[0, 0], [1, 0]])
            inside = ops.less(before, self.top_p * sums[:, -1:])
            shares = ops.where(inside, shares, ops.zeros_like(shares))
        return shares

    def _place(self, shares, index):
        """`[B, 1]`: where the sum of the shares exceeds the number drawn, as a part of the whole.

        That is a place with a share above 0. Should rounding leave no such place, it is the one
        with the largest share.
        """
        sums = ops.cumsum(shares, axis=-1)
        number = ops.take(self.numbers, index, axis=1)[:, None] * sums[:, -1:]
        beyond = ops.logical_and(ops.greater(sums, number), ops.greater(shares, 0))
        marked = ops.where(beyond, ops.full_like(shares, 2.0), shares)  # the shares are at most 1
        _, place = largest(marked, 1)
        return ops.cast(place, "int32")


def _check_seed(seed):
    integer = isinstance(seed, Integral) and not isinstance(seed, bool)
    if integer and 0 <= seed < 2**32:
        return int(seed)
    if seed is not None and not isinstance(seed, keras.random.SeedGenerator):
        raise ValueError(
            "`seed` must be an integer from 0 to 2**32 - 1, a keras.random.SeedGenerator or None. "
            f"Received: {seed!r}."
        )
    return seed


def _by_row(result, count):
    """`[B N, ...]` to `[B, N, ...]`."""

    def split(x):
        shape = ops.shape(x)
        return ops.reshape(x, (shape[0] // count, count, *shape[1:]))

    return SearchResult(*(None if x is None else split(x) for x in result))

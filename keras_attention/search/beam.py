"""Beam search."""

import math

from keras import ops

from keras_attention.checks import check_flag, check_positive
from keras_attention.loops import loop_steps
from keras_attention.masks import as_mask
from keras_attention.search.constraints import Constraints
from keras_attention.search.hypotheses import (
    Hypotheses,
    best,
    flat,
    flat_rows,
    impossible,
    lengths,
    select,
)
from keras_attention.search.largest import largest
from keras_attention.search.ranking import coverage_penalty as penalty_of_coverage
from keras_attention.search.ranking import length_penalties
from keras_attention.search.result import BeamResult
from keras_attention.search.step import (
    Step,
    as_batch,
    as_start_tokens,
    check_token,
    check_weight,
    log_probabilities,
    repeat_rows,
    take_rows,
)


def beam_search(
    step,
    state,
    start_tokens,
    end_token,
    max_length,
    beam_width=4,
    memory=None,
    length_penalty=0.0,
    coverage_penalty=0.0,
    min_length=0,
    num_results=1,
    forbidden_tokens=(),
    no_repeat_ngram=0,
    pad_token=0,
    memory_mask=None,
    reorder_state=True,
):
    """Follows the K most probable sequences at once and returns the N best that it finds.

        score(Y) = sum_t log p(y_t | y_<t, X)
        ranking(Y) = score(Y) / lp(Y) + cp(X; Y)
        lp(Y) = (5 + |Y|)^alpha / (5 + 1)^alpha
        cp(X; Y) = beta sum_s log(min(sum_t a_ts, 1))

    [Wu et al., 2016](https://arxiv.org/abs/1609.08144), equation 14; |Y| is the number of tokens
    in the sum, the end token included.

    At each step all continuations of the K live hypotheses compete by score. Those among the K
    best that end are finished: they take no further part, and the N best of them by ranking are
    kept. The K best that do not end live on. At `max_length` the live ones compete with the
    finished ones by ranking. The loop stops before that when in no row a live hypothesis can
    still get among the N: log-probabilities and cp are at most 0, so that its ranking will be at
    most score / lp(L). The result is the same as without stopping.

    With K = 1 and no penalty this is `greedy_search`.

    Args:
        step: function `(tokens [B K], state) -> (logits [B K, V], state)` or `-> (logits, weights
            [B K, S], state)`; with `memory` it is called as `step(tokens, state, memory)`.
        state: structure of tensors with the batch B first, or scalars; the step keeps its
            structure, shapes and dtypes. It is repeated for the K beams here.
        start_tokens: `[B]` integers, the tokens put into the first step.
        end_token: the id that ends a sequence; None if none does.
        max_length: L, the largest number of steps, an integer of at least 1.
        beam_width: K; it may be larger than the vocabulary.
        memory: structure of tensors with the batch B first, which the step reads and does not
            change. It is repeated for the beams here.
        length_penalty: alpha, at least 0.
        coverage_penalty: beta, at least 0; needs a step that returns weights.
        min_length: the end token may not come before so many tokens, unless nothing else is
            possible.
        num_results: N, from 1 to K.
        forbidden_tokens: ids that never appear.
        no_repeat_ngram: n, no n tokens in a row of a hypothesis occur twice; 0 for no such rule.
        pad_token: the id behind the end token.
        memory_mask: `[B, S]`, True = real: the positions that the coverage penalty is about;
            None for all.
        reorder_state: whether the state belongs to hypotheses, and its rows follow them when they
            change beams. False for a step that keeps what it has seen in all beams and finds what
            belongs to a hypothesis by itself, which saves copies: state and memory then have B
            rows, and it is called as `step(tokens [B, K], state[, memory], origins=[B, K, L])` and
            returns logits `[B, K, V]` and weights `[B, K, S]`. origins[b, k, s] is the beam whose
            step s belongs to what beam k holds: at the step being made k itself, later -1. (A state
            of fixed size needs room for K L steps.)

    Returns:
        A `BeamResult`. A hypothesis for which no token is possible (all are forbidden, or have a
        logit of -inf, or a logit is NaN) drops out. Where fewer than N are found, the rest have
        score and ranking -inf, length 0 and padding only.

    Raises:
        ValueError: if an argument has a wrong type or value, the step returns something else, or
            its logits have another shape.

    Example: the likeliest first token, 1, is not the beginning of the likeliest sequence

    >>> import numpy as np
    >>> import keras
    >>> following = np.log([[0.0001, 0.5, 0.4, 0.0999],
    ...                     [0.0001, 0.3, 0.3, 0.3999],
    ...                     [0.0001, 0.0499, 0.05, 0.9],
    ...                     [0.25, 0.25, 0.25, 0.25]])
    >>> result = beam_search(
    ...     lambda tokens, state: (keras.ops.take(following, tokens, axis=0), state),
    ...     state=[], start_tokens=[0], end_token=3, max_length=4, beam_width=2, num_results=2)
    >>> result.ids.numpy()
    array([[[2, 3, 0, 0],
            [1, 3, 0, 0]]], dtype=int32)
    >>> np.exp(result.scores.numpy()).round(2)
    array([[0.36, 0.2 ]], dtype=float32)
    """
    constraints = Constraints(end_token, max_length, min_length, forbidden_tokens, no_repeat_ngram)
    K = check_positive("beam_width", beam_width)
    N = check_positive("num_results", num_results)
    if N > K:
        raise ValueError(f"`num_results` must be at most `beam_width`, {K}. Received: {N}.")
    tokens = as_start_tokens(start_tokens)
    beams = _Beams(
        constraints,
        width=K,
        results=N,
        alpha=check_weight("length_penalty", length_penalty),
        beta=check_weight("coverage_penalty", coverage_penalty),
        memory_mask=repeat_rows(_as_memory_mask(memory_mask, tokens), K),
        pad_token=check_token("pad_token", pad_token),
        reorder_state=check_flag("reorder_state", reorder_state),
    )
    memory, state = as_batch("memory", memory, tokens), as_batch("state", state, tokens)
    if reorder_state:
        memory, state = repeat_rows(memory, K), repeat_rows(state, K)
    return beams.search(Step(step, memory), tokens, state)


class _Beams:
    """K live and N finished hypotheses a row, and how a step changes them."""

    def __init__(
        self, constraints, width, results, alpha, beta, memory_mask, pad_token, reorder_state
    ):
        self.constraints, self.end_token = constraints, constraints.end_token
        self.width, self.results, self.length = width, results, constraints.max_length
        self.lp = length_penalties(self.length, alpha)
        self.beta, self.memory_mask, self.pad_token = beta, memory_mask, pad_token
        self.reorder_state = reorder_state
        self.places = ops.arange(self.length, dtype="int32")

    def search(self, step, tokens, state):
        """The whole search; tokens `[B]`, the state `[B K, ...]`, or as it is not reordered."""
        K, L = self.width, self.length
        live = impossible(tokens, K, L, self.pad_token)
        # One beam to begin with: K equal ones would stay equal.
        is_first = ops.equal(ops.arange(K), 0)[None]
        live = live._replace(scores=ops.where(is_first, 0.0, live.scores))
        finished = impossible(tokens, self.results, L, self.pad_token)
        coverage = ops.zeros(())  # `[B K, S]` as soon as the first step has told S
        carry = (repeat_rows(tokens, K), live, finished, state, coverage)
        outputs, carry = loop_steps(
            lambda index, carry: self._step(step, index, carry), carry, L, self._done
        )
        _, live, finished, _, _ = carry
        found = best(self.results, finished, live)
        made = lengths(found, self.end_token)
        is_real = ops.greater(found.scores, -math.inf)[..., None]
        ids = ops.where(is_real, found.ids, self.pad_token)
        has_token = ops.logical_and(is_real, ops.less_equal(self.places, made[..., None]))
        weights = self._weights(outputs[0], found.beams, has_token) if outputs else None
        return BeamResult(ids, made, found.scores, found.ranking, weights)

    def _step(self, step, index, carry):
        tokens, live, finished, state, coverage = carry
        logits, weights, state = step(tokens, state, self._origins(live, index))
        penalties = None
        if self.beta:
            coverage = coverage + _needed_weights(weights)
            penalties = penalty_of_coverage(coverage, self.beta, self.memory_mask)
        allowed = self.constraints.allowed(logits, flat(live.ids), index)
        gains = log_probabilities(logits, allowed)
        tokens, rows, candidates = self._continuations(live, gains, penalties, index)
        if self.end_token is None:
            live = candidates
        else:
            ends = ops.equal(tokens, self.end_token)
            finished = self._finish(finished, candidates, ends)
            tokens, rows, live = self._live_on(tokens, rows, candidates, ends)
        rows = flat(rows)
        state = take_rows(state, rows) if self.reorder_state else state
        coverage = ops.take(coverage, rows, axis=0) if self.beta else coverage
        outputs = [] if weights is None else [weights]
        return outputs, (flat(tokens), live, finished, state, coverage)

    def _origins(self, live, index):
        """`[B, K, L]`: the beams in which the steps of the live hypotheses were made."""
        if self.reorder_state:
            return None
        own = ops.arange(self.width, dtype="int32")[:, None]
        now = ops.where(ops.equal(self.places, index), own, -1)
        return ops.where(ops.less(self.places, index), live.beams, now)

    def _continuations(self, live, gains, penalties, index):
        """The best hypotheses of one more token: the tokens, the rows they come from, and they.

        2 K of them, so that there are K that do not end: each beam ends in one way only.
        """
        K, size = self.width, gains.shape[-1]
        if size is None:
            raise ValueError("`step` must return logits whose last axis, V, is known.")
        count = K if self.end_token is None else min(2 * K, K * size)
        totals = ops.reshape(flat(live.scores)[:, None] + gains, (-1, K * size))
        scores, choice = largest(totals, count)
        choice = ops.cast(choice, "int32")
        beams, tokens = choice // size, choice % size
        rows = flat_rows(beams, K)
        # Rounding must not make a continuation better than what it continues.
        scores = ops.minimum(scores, ops.take(flat(live.scores), rows))
        ranking = scores / ops.take(self.lp, index + 1)
        if penalties is not None:
            ranking = ranking + ops.take(penalties, rows)
        here = ops.equal(self.places, index)
        ids, origins = (ops.take(flat(x), rows, axis=0) for x in (live.ids, live.beams))
        candidates = Hypotheses(
            ids=ops.where(here, tokens[..., None], ids),
            beams=ops.where(here, beams[..., None], origins),
            scores=scores,
            ranking=ranking,
        )
        return tokens, rows, candidates

    def _finish(self, finished, candidates, ends):
        """The N best of the finished ones and of those that end now, among the K best."""
        candidates = candidates._replace(ranking=ops.where(ends, candidates.ranking, -math.inf))
        return best(self.results, finished, Hypotheses(*(x[:, : self.width] for x in candidates)))

    def _live_on(self, tokens, rows, candidates, ends):
        """The K best of those that do not end."""
        scores, ranking = (
            ops.where(ends, -math.inf, x) for x in (candidates.scores, candidates.ranking)
        )
        _, choice = largest(scores, self.width)
        tokens, rows, *live = select(
            ops.cast(choice, "int32"),
            tokens,
            rows,
            *candidates._replace(scores=scores, ranking=ranking),
        )
        return tokens, rows, Hypotheses(*live)

    def _done(self, carry):
        """Whether in no row a live hypothesis can get among the N."""
        _, live, finished, _, _ = carry
        bound = live.scores[:, 0] / self.lp[self.length]  # they are sorted
        return ops.all(ops.greater_equal(finished.ranking[:, -1], bound))

    def _weights(self, weights, beams, has_token):
        """`[B, N, L, S]` out of those of all beams, `[B K, L, S]`; 0 where there is no token."""
        L = self.length
        first = self.width * ops.arange(ops.shape(beams)[0], dtype="int32")
        rows = first[:, None, None] + beams
        table = ops.reshape(weights, (ops.shape(weights)[0] * L, ops.shape(weights)[-1]))
        weights = ops.take(table, rows * L + self.places, axis=0)
        return ops.where(has_token[..., None], weights, ops.zeros_like(weights))


def _as_memory_mask(mask, tokens):
    mask = as_batch("memory_mask", as_mask(mask, "memory_mask"), tokens)
    if mask is not None and len(mask.shape) != 2:
        raise ValueError(f"`memory_mask` must have shape [B, S]. Received: {tuple(mask.shape)}.")
    return mask


def _needed_weights(weights):
    if weights is None:
        raise ValueError(
            "`coverage_penalty` needs a step that returns (logits, weights, state). Received "
            "no weights."
        )
    return ops.cast(weights, "float32")

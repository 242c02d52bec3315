"""What a hypothesis may go on with: minimum length, forbidden tokens, no repeated n-grams."""

from numbers import Integral

import numpy as np
from keras import ops

from keras_attention.search.step import check_lengths, check_token


class Constraints:
    """Says which tokens may follow; the same for all searches.

    Args:
        end_token: the id that ends a sequence, or None.
        max_length: L.
        min_length: the end token may not come before so many tokens.
        forbidden_tokens: ids that never appear.
        no_repeat_ngram: n, no n tokens in a row occur twice; 0 for no such rule.

    Raises:
        ValueError: if an argument has a wrong type or value, or the end token is forbidden.
    """

    def __init__(self, end_token, max_length, min_length, forbidden_tokens, no_repeat_ngram):
        self.end_token = None if end_token is None else check_token("end_token", end_token)
        self.max_length, self.min_length = check_lengths(max_length, min_length)
        if isinstance(forbidden_tokens, (Integral, str)):
            raise ValueError(
                "`forbidden_tokens` must be a sequence of token ids. Received: "
                f"{forbidden_tokens!r}."
            )
        self.forbidden = [check_token("forbidden_tokens", token) for token in forbidden_tokens]
        if self.end_token in self.forbidden:
            raise ValueError(
                f"`forbidden_tokens` holds the end token, {self.end_token}: without it no "
                "sequence ends. `end_token=None` searches to `max_length`."
            )
        n = no_repeat_ngram
        if isinstance(n, bool) or not isinstance(n, Integral) or n < 0:
            raise ValueError(
                f"`no_repeat_ngram` must be an integer of at least 0. Received: {n!r}."
            )
        self.n = int(n)

    def allowed(self, logits, ids, index):
        """Which tokens may come at place `index`.

        Where `min_length` forbids the end token and there is no other token that the rules allow
        and that is possible, the end token is allowed after all.

        Args:
            logits: `[N, V]`, whose -inf are impossible tokens.
            ids: `[N, L]`, the tokens at the places before `index`, and anything behind.
            index: an integer or a scalar tensor.

        Returns:
            Boolean, broadcastable to `[N, V]`; None where nothing is forbidden.
        """
        self._check_vocabulary(logits.shape[-1])
        size = ops.shape(logits)[-1]
        allowed = None
        if self.forbidden:
            forbidden = ops.convert_to_tensor(np.array(self.forbidden, "int32"))
            token = ops.arange(size, dtype="int32")[:, None]
            allowed = ops.logical_not(ops.any(ops.equal(token, forbidden), axis=-1))[None]
        if self.n:
            allowed = _both(allowed, ops.logical_not(self._repeating(ids, index, size)))
        if self.min_length and self.end_token is not None:
            is_end = ops.equal(ops.arange(size, dtype="int32"), self.end_token)[None]
            others = _both(allowed, ops.logical_not(is_end))
            possible = ops.logical_and(others, ops.greater(logits, -np.inf))
            may_end = ops.logical_or(
                ops.greater_equal(index, self.min_length),
                ops.logical_not(ops.any(possible, axis=-1, keepdims=True)),
            )
            allowed = ops.logical_or(others, ops.logical_and(is_end, may_end))
        return allowed

    def _check_vocabulary(self, size):
        named = [("end_token", self.end_token)] if self.end_token is not None else []
        for name, token in named + [("forbidden_tokens", token) for token in self.forbidden]:
            if token < 0 or (size is not None and token >= size):
                raise ValueError(
                    f"`{name}` must be token ids of the step's logits, from 0 to "
                    f"{'V' if size is None else size} - 1. Received: {token}."
                )

    def _repeating(self, ids, index, size):
        """`[N, V]`: the tokens that would end an n-gram that is there already."""
        n, windows = self.n, self.max_length - self.n + 1
        if windows < 1:
            return ops.zeros((1, size), "bool")
        starts = ops.arange(windows, dtype="int32")
        same = ops.less(starts + (n - 1), index)[None]  # the n-gram lies before `index`
        for m in range(n - 1):
            latest = ops.take(ids, ops.maximum(index - (n - 1) + m, 0), axis=1)
            same = ops.logical_and(same, ops.equal(ids[:, m : m + windows], latest[:, None]))
        last = ids[:, n - 1 :]
        is_token = ops.logical_and(last >= 0, last < size)  # padding of a row that has ended
        same = ops.logical_and(same, is_token)
        rows = ops.arange(ops.shape(ids)[0], dtype="int32")[:, None] + ops.zeros_like(last)
        places = ops.stack([rows, ops.where(same, last, ops.zeros_like(last))], axis=-1)
        counts = ops.scatter(
            ops.reshape(places, (-1, 2)),
            ops.reshape(ops.cast(same, "int32"), (-1,)),
            (ops.shape(ids)[0], size),
        )
        return ops.greater(counts, 0)


def _both(a, b):
    return b if a is None else ops.logical_and(a, b)

"""Sets of M hypotheses for each row of the batch, as plain tensors."""

import math
from typing import Any, NamedTuple

from keras import ops


class Hypotheses(NamedTuple):
    """M hypotheses a row.

    Attributes:
        ids: `[B, M, L]` token ids, padded.
        beams: `[B, M, L]` for each token, the beam whose step put it out: where to find the
            attention weights of that step.
        lengths: `[B, M]` number of tokens before the end token.
        scores: `[B, M]` sums of log-probabilities; -inf for what is no hypothesis.
        ranking: `[B, M]` what they are sorted by.
    """

    ids: Any
    beams: Any
    lengths: Any
    scores: Any
    ranking: Any


def impossible(like, count, length, pad_token):
    """`count` hypotheses that are none, for each of the `like` `[B]` rows."""
    none = ops.zeros_like(like)[:, None] + ops.zeros((1, count), "int32")
    ids = none[:, :, None] + ops.full((1, 1, length), pad_token, "int32")
    scores = ops.where(ops.equal(none, 0), -math.inf, ops.cast(none, "float32"))
    return Hypotheses(ids, ops.zeros_like(ids), none, scores, scores)


def select(hypotheses, choice):
    """The hypotheses `choice` `[B, m]` out of M."""
    return Hypotheses(*(select_entries(x, choice) for x in hypotheses))


def select_entries(x, choice):
    """Entries `choice` `[B, m]` of `[B, M, ...]`."""
    count = x.shape[1]
    rows = choice + count * ops.arange(ops.shape(choice)[0], dtype="int32")[:, None]
    return ops.take(ops.reshape(x, (-1, *x.shape[2:])), rows, axis=0)


def best(count, *sets):
    """The `count` best of several sets, sorted; the earlier ones first among equals."""
    joined = Hypotheses(*(ops.concatenate(x, axis=1) for x in zip(*sets, strict=True)))
    _, choice = ops.top_k(joined.ranking, count)
    return select(joined, ops.cast(choice, "int32"))

"""Sets of M hypotheses for each row of the batch, as plain tensors."""

import math
from typing import Any, NamedTuple

from keras import ops

from keras_attention.search.largest import largest


class Hypotheses(NamedTuple):
    """M hypotheses a row.

    Attributes:
        ids: `[B, M, L]` token ids, padded.
        beams: `[B, M, L]` for each token, the beam whose step put it out: where to find the
            attention weights of that step.
        scores: `[B, M]` sums of log-probabilities; -inf for what is no hypothesis.
        ranking: `[B, M]` what they are sorted by.
    """

    ids: Any
    beams: Any
    scores: Any
    ranking: Any


def impossible(like, count, length, pad_token):
    """`count` hypotheses that are none, for each of the `like` `[B]` rows."""
    none = ops.zeros_like(like)[:, None] + ops.zeros((1, count), "int32")
    ids = none[:, :, None] + ops.full((1, 1, length), pad_token, "int32")
    scores = ops.where(ops.equal(none, 0), -math.inf, ops.cast(none, "float32"))
    return Hypotheses(ids, ops.zeros_like(ids), scores, scores)


def lengths(hypotheses, end_token):
    """`[B, M]`: how many tokens come before the end token; 0 for what is no hypothesis."""
    length = hypotheses.ids.shape[-1]
    if end_token is None:
        counts = ops.zeros_like(hypotheses.ids[..., 0]) + length
    else:
        ends = ops.cast(ops.equal(hypotheses.ids, end_token), "int32")
        counts = ops.sum(ops.cast(ops.equal(ops.cumsum(ends, axis=-1), 0), "int32"), axis=-1)
    is_real = ops.greater(hypotheses.scores, -math.inf)
    return ops.where(is_real, counts, ops.zeros_like(counts))


def flat(x):
    """`[B, M, ...]` to `[B M, ...]`."""
    return ops.reshape(x, (-1, *x.shape[2:]))


def flat_rows(choice, count):
    """Where the entries `choice` `[B, m]` out of `count` are in flat tensors `[B count, ...]`."""
    return choice + count * ops.arange(ops.shape(choice)[0], dtype="int32")[:, None]


def select(choice, *tensors):
    """Entries `choice` `[B, m]` of tensors `[B, M, ...]`, in a list."""
    rows = flat_rows(choice, tensors[0].shape[1])
    return [ops.take(flat(x), rows, axis=0) for x in tensors]


def best(count, *sets):
    """The `count` best of several sets, sorted; the earlier ones first among equals."""
    joined = Hypotheses(*(ops.concatenate(x, axis=1) for x in zip(*sets, strict=True)))
    _, choice = largest(joined.ranking, count)
    return Hypotheses(*select(ops.cast(choice, "int32"), *joined))

"""Multi-head attention with all its pieces in float64 NumPy, one pair of query and key at a time.

Nothing here comes from the package, from Keras or from TensorFlow.

- Vaswani et al. 2017, section 3.2, and Ainslie et al. 2023 (grouped heads)
- Henry et al. 2020, "Query-key normalization for transformers", https://arxiv.org/abs/2010.04245,
  with the normalisations of Ba et al. 2016 and of Zhang and Sennrich 2019
- Gemma 2, 2024, section 2 (soft cap), https://arxiv.org/abs/2408.00118
- OpenAI 2025, section 2.2 (sinks), https://arxiv.org/abs/2508.10925
- Raffel et al. 2020, section 3.2.1 (prefix); positions: see reference_positions
"""

import math
from typing import Any, NamedTuple

import numpy as np
import reference_positions as places
from reference import f64, project


class Pieces(NamedTuple):
    """What a layer is made of besides its projections; None for what it has not.

    Attributes:
        frequencies: of a rotation; interleaved: whether neighbours make a pair.
        alibi: whether the scores fall with the distance.
        relative: weight `[buckets, N]`; bidirectional: whether later keys have their own buckets.
        cap: the soft cap.
        query_norm, key_norm: functions of a vector.
        modifier: function `(score, b, n, p, q) -> score` of one pair.
        allowed: function `(b, n, p, q) -> bool` of one pair.
        window: keys fewer than so many positions away are seen.
        sinks: `[N]`.
    """

    frequencies: Any = None
    interleaved: bool = False
    alibi: bool = False
    relative: Any = None
    bidirectional: bool = True
    cap: Any = None
    query_norm: Any = None
    key_norm: Any = None
    modifier: Any = None
    allowed: Any = None
    window: Any = None
    sinks: Any = None


def rms_norm(x, scale, epsilon):
    """Zhang and Sennrich 2019, equation 4."""
    return x / math.sqrt(np.mean(x**2) + epsilon) * scale


def layer_norm(x, gamma, beta, epsilon):
    """Ba et al. 2016, equation 4."""
    return (x - np.mean(x)) / math.sqrt(np.var(x) + epsilon) * gamma + beta


def softmax_with_sink(scores, allowed, sink=None):
    """One row; without an allowed entry it is 0."""
    terms = [math.exp(x) if a else 0.0 for x, a in zip(scores, allowed, strict=True)]
    total = sum(terms) + (0.0 if sink is None else math.exp(sink))
    return np.array([term / total if term else 0.0 for term in terms])


def head(x, kernel, bias, norm, positions, pieces):
    """The vectors `[T, K]` of one head of one sample: projected, normalised, rotated."""
    x = project(x, kernel, bias)
    if norm is not None:
        x = np.array([norm(row) for row in x]).reshape(x.shape)
    if pieces.frequencies is not None:
        x = places.rotate(x, positions, pieces.frequencies, pieces.interleaved)
    return x


def score(query, key, b, n, p, q, heads, pieces):
    """The score of one pair: position p of the query, q of the key."""
    value = float(np.dot(query, key)) / math.sqrt(len(query))
    if pieces.cap is not None:
        value = pieces.cap * math.tanh(value / pieces.cap)
    if pieces.modifier is not None:
        value = pieces.modifier(value, b, n, p, q)
    if pieces.alibi:
        value -= places.slopes(heads)[n] * abs(p - q)
    if pieces.relative is not None:
        buckets = len(pieces.relative)
        value += pieces.relative[
            places.bucket(q - p, buckets, bidirectional=pieces.bidirectional), n
        ]
    return value


def may_attend(b, n, p, q, causal, prefix, pieces):
    """Whether the layer's own masks let the pair be."""
    return (
        (not causal or q <= p or (prefix is not None and q < prefix[b]))
        and (pieces.window is None or abs(p - q) < pieces.window)
        and (pieces.allowed is None or bool(pieces.allowed(b, n, p, q)))
    )


def attention(
    query,
    value,
    kernels,
    biases=None,
    pieces=None,
    positions=None,
    key_positions=None,
    query_mask=None,
    value_mask=None,
    attention_mask=None,
    attention_bias=None,
    segments=None,
    prefix=None,
    causal=False,
):
    """Output `[B, T, Do]` and weights `[B, N, T, S]`; a query that sees nothing has output 0.

    Args:
        query, value: `[B, T, Dq]`, `[B, S, Dv]`.
        kernels, biases: as of `reference.multi_head_attention`.
        pieces: `Pieces`.
        positions, key_positions: `[B, T]`, `[B, S]`; by default keys count from 0 and the last
            query stands at the last key.
        query_mask, value_mask: `[B, T]`, `[B, S]`.
        attention_mask, attention_bias: `[B, N, T, S]`.
        segments: `[B, T]` and `[B, S]`: queries see the keys of their segment.
        prefix: `[B]`, how many keys are seen in spite of `causal`.
        causal: whether queries see no key behind them.
    """
    query, value, pieces = f64(query), f64(value), pieces or Pieces()
    (B, T), S = query.shape[:2], value.shape[1]
    N, _, Do = np.shape(kernels["output"])
    group = N // np.shape(kernels["key"])[1]
    if key_positions is None:
        key_positions = np.tile(np.arange(S), (B, 1))
    if positions is None:
        positions = np.tile(np.arange(T) + S - T, (B, 1))

    def projection(name, n):
        return f64(kernels[name])[:, n], None if biases is None else biases[name][n]

    output, weights = np.zeros((B, T, Do)), np.zeros((B, N, T, S))
    seen = np.zeros((B, N, T, S), bool)
    for b, n in np.ndindex(B, N):
        g = n // group
        queries = head(query[b], *projection("query", n), pieces.query_norm, positions[b], pieces)
        keys = head(value[b], *projection("key", g), pieces.key_norm, key_positions[b], pieces)
        values = project(value[b], *projection("value", g))
        for t in range(T):
            scores = np.zeros(S)
            for s in range(S):
                p, q = int(positions[b][t]), int(key_positions[b][s])
                seen[b, n, t, s] = (
                    (query_mask is None or query_mask[b][t])
                    and (value_mask is None or value_mask[b][s])
                    and (attention_mask is None or attention_mask[b][n][t][s])
                    and (segments is None or segments[0][b][t] == segments[1][b][s])
                    and may_attend(b, n, p, q, causal, prefix, pieces)
                )
                if seen[b, n, t, s]:
                    scores[s] = score(queries[t], keys[s], b, n, p, q, N, pieces)
                    scores[s] += 0.0 if attention_bias is None else attention_bias[b][n][t][s]
            sink = None if pieces.sinks is None else pieces.sinks[n]
            weights[b, n, t] = softmax_with_sink(scores, seen[b, n, t], sink)
            output[b, t] += weights[b, n, t] @ values @ f64(kernels["output"])[n]
    output += 0.0 if biases is None else f64(biases["output"])
    return output * seen.any(axis=(1, 3))[..., None], weights

"""Attention that reads its own past, and decoders around it, in float64 NumPy, one sample each.

Nothing here comes from the package, from Keras or from TensorFlow, and nothing is fast.

- Tu, Lu, Liu, Liu, Li 2016, "Modeling coverage for neural machine translation",
  https://arxiv.org/abs/1601.04811
- See, Liu, Manning 2017, "Get to the point: summarization with pointer-generator networks",
  https://arxiv.org/abs/1704.04368
- Chorowski, Bahdanau, Serdyuk, Cho, Bengio 2015, "Attention-based models for speech recognition",
  https://arxiv.org/abs/1506.07503
- Salimans, Kingma 2016, "Weight normalization", https://arxiv.org/abs/1602.07868
- Luong, Pham, Manning 2015, section 3.3 (input feeding), https://arxiv.org/abs/1508.04025
- Bengio, Vinyals, Jaitly, Shazeer 2015, "Scheduled sampling for sequence prediction with recurrent
  neural networks", https://arxiv.org/abs/1506.03099
"""

import math
from typing import NamedTuple

import numpy as np
from reference import affine, f64, inner, output_of, sigmoid, softmax_row


class Past(NamedTuple):
    """The weights of the step before, and the sum of those of all steps before, `[S]`."""

    previous: np.ndarray
    total: np.ndarray


def beginning(size, previous=None):
    return Past(np.zeros(size) if previous is None else f64(previous), np.zeros(size))


# Features `[S, F]` of the past: a function of the past and the values `[S, Dv]`


def coverage(past, values, u=None, largest=None):
    """See, the vector c_t: the sum of the weights so far.

    Tu, linguistic coverage: each weight counts 1 / fertility_s, fertility_s = N sigmoid(u^T h_s).
    """
    features = np.zeros((len(values), 1))
    for s, value in enumerate(values):
        fertility = 1.0 if largest is None else largest * sigmoid(inner(u, value))
        features[s, 0] = past.total[s] / fertility
    return features


def location(weights, filters):
    """Chorowski, section 2.1: f_t = F * weights_(t-1); filters `[width, k]`, width odd, centred."""
    width, count = np.shape(filters)
    features = np.zeros((len(weights), count))
    for s in range(len(weights)):
        for j in range(width):
            at = s + j - width // 2
            if 0 <= at < len(weights):
                features[s] += weights[at] * f64(filters)[j]
    return features


# Scores and attention


def additive_scores(query, keys, W, U, v, bias=None, g=None, features=None, V=None):
    """v^T tanh(W q + U k_s + V f_s + b) for each s; with g, the vector g v / |v| instead of v."""
    v = f64(v) if g is None else float(g) * f64(v) / math.sqrt(inner(v, v))
    scores = np.zeros(len(keys))
    for s, key in enumerate(keys):
        hidden = affine(query, W, bias) + affine(key, U)
        if features is not None:
            hidden = hidden + affine(features[s], V)
        scores[s] = inner(v, np.tanh(hidden))
    return scores


def softmax(scores, allowed, past):
    return softmax_row(scores, allowed)


def step_of(score, normalize=softmax):
    """An attention step: `(query, keys, values, allowed [S], past) -> (context, weights, past)`.

    score: `(query, keys, values, past) -> scores [S]`.
    normalize: `(scores, allowed, past) -> weights`.
    """

    def step(query, keys, values, allowed, past):
        scores = score(query, keys, values, past)
        weights = normalize(scores, allowed, past)
        context = np.zeros(np.shape(values)[1])
        for s in range(len(values)):
            if weights[s]:
                context += weights[s] * f64(values[s])
        return context, weights, Past(weights, past.total + weights)

    return step


def attend(step, query, keys, values, mask=None, query_mask=None, past=None):
    """All query steps `[T, Dq]` in order: `(context [T, Dv], weights [T, S], past)`.

    mask: `[T, S]`. A step that `query_mask` `[T]` hides gives zeros and is not part of the past.
    """
    past = beginning(len(keys)) if past is None else past
    context, weights = (
        np.zeros((len(query), np.shape(values)[1])),
        np.zeros((len(query), len(keys))),
    )
    for t in range(len(query)):
        if query_mask is None or query_mask[t]:
            allowed = np.ones(len(keys), bool) if mask is None else mask[t]
            context[t], weights[t], past = step(query[t], keys, values, allowed, past)
    return context, weights, past


# Decoders: `step(x, state, memory, memory_mask) -> (output, weights, state)` for `run_decoder`;
# a state is (state of the cell, past, last output)


def bahdanau_step(cell, attention):
    """c_t = attention(s_(t-1)); s_t = cell([x_t; c_t], s_(t-1))."""

    def step(x, state, memory, mask):
        inner_state, past, _ = state
        context, weights, past = attention(output_of(inner_state), memory, memory, mask, past)
        output, inner_state = cell(np.concatenate([f64(x), context]), inner_state)
        return output, weights, (inner_state, past, output)

    return step


def luong_step(cell, attention, kernel, bias, activation=np.tanh, feeding=True):
    """s_t = cell([x_t; output_(t-1)], s_(t-1)); output_t = tanh(W_c [attention(s_t); s_t] + b).

    Without feeding the cell reads x_t alone.
    """

    def step(x, state, memory, mask):
        inner_state, past, last = state
        fed = np.concatenate([f64(x), last]) if feeding else f64(x)
        hidden, inner_state = cell(fed, inner_state)
        context, weights, past = attention(hidden, memory, memory, mask, past)
        output = activation(affine(np.concatenate([context, hidden]), kernel, bias))
        return output, weights, (inner_state, past, output)

    return step


# Scheduled sampling


def inverse_sigmoid(i, k):
    """Bengio, section 2.4: the true token is taken with probability k / (k + exp(i / k))."""
    return 1 - k / (k + math.exp(i / k))


def decode_with_coins(step, state, tokens, coins, embed, to_logits, memory, mask, memory_mask):
    """Bengio, section 2.4, the model's token being the likeliest: logits `[T, V]`.

    Where coins `[T]` are True a step reads the model's own token of the real step before, if there
    is one. mask: `[T]`; a masked step keeps the state.
    """
    logits, own = [], None
    for t, token in enumerate(tokens):
        x = embed(own if coins[t] and own is not None else token)
        output, _, after = step(x, state, f64(memory), memory_mask)
        if mask[t]:
            state, own = after, int(np.argmax(to_logits(output)))
        logits.append(to_logits(output if mask[t] else np.zeros(len(output))))
    return np.array(logits)

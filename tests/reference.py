"""The right answers: the papers' equations in float64 NumPy, as plain loops.

Nothing here is fast, and nothing here comes from the package, from Keras or from TensorFlow: each
function repeats an equation of its paper index by index, so that it can be checked by reading.

Letters: B batch, N heads, T query steps, S memory steps, D features, U units.
Masks are boolean, True = may attend, and have the whole shape of the scores.

- Bahdanau, Cho, Bengio 2015, "Neural machine translation by jointly learning to align and
  translate", https://arxiv.org/abs/1409.0473
- Luong, Pham, Manning 2015, "Effective approaches to attention-based neural machine translation",
  https://arxiv.org/abs/1508.04025
- Vaswani et al. 2017, "Attention is all you need", https://arxiv.org/abs/1706.03762
"""

import math

import numpy as np


def f64(array):
    """Any array, list or tensor as float64."""
    return np.asarray(array).astype(np.float64)


def inner(a, b):
    """Inner product of two vectors."""
    assert len(a) == len(b), (len(a), len(b))
    return sum(float(x) * float(y) for x, y in zip(a, b, strict=True))


def affine(x, kernel, bias=None):
    """x W + b for one vector x; kernel `[in, out]`."""
    kernel = f64(kernel)
    out = np.array([inner(x, kernel[:, u]) for u in range(kernel.shape[1])])
    return out if bias is None else out + f64(bias)


def project(x, kernel, bias=None):
    """`affine` for each vector of x `[..., D]`."""
    x = f64(x)
    out = np.zeros(x.shape[:-1] + (np.shape(kernel)[1],))
    for index in np.ndindex(*x.shape[:-1]):
        out[index] = affine(x[index], kernel, bias)
    return out


# Masks


def padding_mask(lengths, size=None):
    """`[B, 1, size]`: step s of sample b is real where s < lengths[b]."""
    size = max(lengths) if size is None else size
    mask = np.zeros((len(lengths), 1, size), bool)
    for b, length in enumerate(lengths):
        for s in range(size):
            mask[b, 0, s] = s < length
    return mask


def causal_mask(query_size, key_size=None):
    """`[T, S]`: query t sits at the time t + (S - T) and sees no later key."""
    key_size = query_size if key_size is None else key_size
    mask = np.zeros((query_size, key_size), bool)
    for t in range(query_size):
        for s in range(key_size):
            mask[t, s] = s <= t + (key_size - query_size)
    return mask


def window_mask(query_size, key_size=None, *, window):
    """`[T, S]`: keys fewer than `window` steps away on either side."""
    key_size = query_size if key_size is None else key_size
    mask = np.zeros((query_size, key_size), bool)
    for t in range(query_size):
        for s in range(key_size):
            mask[t, s] = abs(t + (key_size - query_size) - s) < window
    return mask


def segment_mask(query_segments, key_segments=None):
    """`[B, T, S]`: query and key of the same segment."""
    key_segments = query_segments if key_segments is None else key_segments
    B, T, S = len(query_segments), len(query_segments[0]), len(key_segments[0])
    mask = np.zeros((B, T, S), bool)
    for b in range(B):
        for t in range(T):
            for s in range(S):
                mask[b, t, s] = query_segments[b][t] == key_segments[b][s]
    return mask


def combine_masks(shape, *masks):
    """The and of masks, none of which need have the whole shape `[B, ..., T, S]` of the scores.

    A mask of rank 2 is `[T, S]`. One of higher rank has the batch first and its other axes last.
    An axis of size 1 stands for all.
    """
    combined = np.ones(shape, bool)
    for mask in (np.asarray(mask) for mask in masks if mask is not None):
        for index in np.ndindex(*shape):
            place = (
                index[-2:] if mask.ndim == 2 else index[:1] + index[len(index) + 1 - mask.ndim :]
            )
            place = tuple(0 if size == 1 else i for i, size in zip(place, mask.shape, strict=True))
            combined[index] = combined[index] and mask[place]
    return combined


def layer_mask(
    B, T, S, query_mask=None, value_mask=None, key_mask=None, attention_mask=None, causal=False
):
    """`[B, T, S]` from the masks of a layer's call, which are all and-ed."""
    mask = np.ones((B, T, S), bool)
    for b in range(B):
        for t in range(T):
            for s in range(S):
                if query_mask is not None and not query_mask[b][t]:
                    mask[b, t, s] = False
                if value_mask is not None and not value_mask[b][s]:
                    mask[b, t, s] = False
                if key_mask is not None and not key_mask[b][s]:
                    mask[b, t, s] = False
                if attention_mask is not None and not attention_mask[b][t][s]:
                    mask[b, t, s] = False
                if causal and s > t + (S - T):
                    mask[b, t, s] = False
    return mask


# Softmax


def softmax_row(scores, allowed):
    """Softmax of one row over the allowed entries; all 0 where none is allowed."""
    weights = np.zeros(len(scores))
    kept = [s for s in range(len(scores)) if allowed[s]]
    if kept:
        largest = max(scores[s] for s in kept)
        total = sum(math.exp(scores[s] - largest) for s in kept)
        for s in kept:
            weights[s] = math.exp(scores[s] - largest) / total
    return weights


def masked_softmax(scores, mask=None):
    """`softmax_row` for each row of scores `[..., S]`."""
    scores = f64(scores)
    allowed = np.ones(scores.shape, bool) if mask is None else np.broadcast_to(mask, scores.shape)
    weights = np.zeros(scores.shape)
    for index in np.ndindex(*scores.shape[:-1]):
        weights[index] = softmax_row(scores[index], allowed[index])
    return weights


# Scores: a function of one query vector and one key vector, then of all pairs


def dot(q, k):
    """Luong eq. 8: q^T k."""
    return inner(q, k)


def scaled_dot(q, k, scale=None):
    """Vaswani eq. 1: q^T k / sqrt(d_k)."""
    return inner(q, k) * (1.0 / math.sqrt(len(k)) if scale is None else scale)


def general(q, k, kernel):
    """Luong eq. 8: q^T W k."""
    kernel = f64(kernel)
    return sum(float(q[i]) * inner(kernel[i], k) for i in range(len(q)))


def additive(q, k, v, bias=None):
    """Bahdanau A.1.2 on a projected query W s and a projected key U h: v^T tanh(q + k + b)."""
    bias = np.zeros(len(q)) if bias is None else f64(bias)
    return sum(float(v[u]) * math.tanh(q[u] + k[u] + bias[u]) for u in range(len(q)))


def concat(q, k, kernel, v):
    """Luong eq. 8: v^T tanh(W [q; k])."""
    hidden = affine(np.concatenate([q, k]), kernel)
    return sum(float(v[u]) * math.tanh(hidden[u]) for u in range(len(hidden)))


def pairwise(score, query, key, **weights):
    """Scores `[..., T, S]` of each query `[..., T, Dq]` with each key `[..., S, Dk]`."""
    query, key = f64(query), f64(key)
    assert query.shape[:-2] == key.shape[:-2], (query.shape, key.shape)
    scores = np.zeros(query.shape[:-1] + (key.shape[-2],))
    for index in np.ndindex(*query.shape[:-2]):
        for t in range(query.shape[-2]):
            for s in range(key.shape[-2]):
                scores[index + (t, s)] = score(query[index][t], key[index][s], **weights)
    return scores


# Attention


def weighted_sum(weights, value, allowed=None):
    """Context `[..., T, Dv]`; a value that may not be attended to is left out of the sum."""
    weights, value = f64(weights), f64(value)
    allowed = np.ones(weights.shape, bool) if allowed is None else allowed
    context = np.zeros(weights.shape[:-1] + (value.shape[-1],))
    for index in np.ndindex(*weights.shape[:-1]):
        for s in range(weights.shape[-1]):
            if allowed[index][s]:
                context[index] += weights[index][s] * value[index[:-1]][s]
    return context


def attend(query, key, value, score=scaled_dot, mask=None, scores_bias=None, **weights_of_score):
    """Score, mask, normalise, sum: `(context, weights)`.

    scores_bias is added to the scores; an entry of -inf counts as masked.
    """
    scores = pairwise(score, query, key, **weights_of_score)
    mask = np.ones(scores.shape, bool) if mask is None else np.broadcast_to(mask, scores.shape)
    if scores_bias is not None:
        bias = np.broadcast_to(f64(scores_bias), scores.shape)
        mask = mask & (bias != -np.inf)
        scores = np.where(mask, scores + bias, 0.0)
    weights = masked_softmax(scores, mask)
    return weighted_sum(weights, value, mask), weights


def bahdanau_attention(query, key, value, query_kernel, key_kernel, v, bias=None, mask=None):
    """Bahdanau A.1.2: v^T tanh(W q + U k). The bias, if any, is added once, inside the tanh."""
    projected = project(query, query_kernel, bias), project(key, key_kernel)
    return attend(*projected, value, additive, mask, v=v)


def luong_attention(query, key, value, score_mode, mask=None, kernel=None, v=None):
    """Luong section 3.1 with the scores of eq. 8, and Vaswani's scaled dot product."""
    if score_mode == "dot":
        return attend(query, key, value, dot, mask)
    if score_mode == "scaled_dot":
        return attend(query, key, value, scaled_dot, mask)
    if score_mode == "general":
        return attend(query, key, value, general, mask, kernel=kernel)
    if score_mode == "concat":
        return attend(query, key, value, concat, mask, kernel=kernel, v=v)
    raise ValueError(score_mode)


def scaled_dot_product_attention(query, key, value, mask=None, bias=None):
    """Vaswani eq. 1."""
    return attend(query, key, value, scaled_dot, mask, bias)


def multi_head_attention(query, key, value, kernels, biases=None, mask=None, bias=None):
    """Vaswani section 3.2.2: `(output [B, T, Do], weights [B, N, T, S])`.

    kernels: query `[Dq, N, K]`, key `[Dk, Nkv, K]`, value `[Dv, Nkv, V]`, output `[N, V, Do]`.
    biases, or None: query `[N, K]`, key `[Nkv, K]`, value `[Nkv, V]`, output `[Do]`.
    mask and bias: `[B, T, S]` for all heads, or `[B, N, T, S]`.
    With fewer key/value heads than query heads, query head n uses head n // (N / Nkv).
    """
    kernels = {name: f64(kernel) for name, kernel in kernels.items()}
    B, T, S = len(query), np.shape(query)[1], np.shape(key)[1]
    N, V, Do = kernels["output"].shape
    group = N // kernels["key"].shape[1]

    def part(name, x, head):
        return project(x, kernels[name][:, head], None if biases is None else biases[name][head])

    def of_head(array, b, head):
        return None if array is None else array[b] if np.ndim(array) == 3 else array[b][head]

    output, weights = np.zeros((B, T, Do)), np.zeros((B, N, T, S))
    for b in range(B):
        for n in range(N):
            context, weights[b, n] = attend(
                part("query", query[b], n),
                part("key", key[b], n // group),
                part("value", value[b], n // group),
                scaled_dot,
                of_head(mask, b, n),
                of_head(bias, b, n),
            )
            output[b] += project(context, kernels["output"][n])
        if biases is not None:
            output[b] += f64(biases["output"])
    return output, weights


# Recurrent cells: step(x [D], state) -> (output [U], state); the state is a list of vectors, the
# output first


def sigmoid(x):
    return 1.0 / (1.0 + np.exp(-x))


def simple_rnn_cell(kernel, recurrent_kernel, bias):
    """Elman: h' = tanh(W x + R h + b)."""

    def step(x, state):
        h = np.tanh(affine(x, kernel, bias) + affine(state[0], recurrent_kernel))
        return h, [h]

    return step


def gru_cell(kernel, recurrent_kernel, bias, reset_after=True):
    """Cho et al. 2014, gates in the order z, r, h.

    reset_after: the reset gate is applied to R h + b' (bias `[2, 3U]`, input's first), and not to
    h before the product (bias `[3U]`).
    """
    kernel, recurrent_kernel, bias = f64(kernel), f64(recurrent_kernel), f64(bias)
    U = recurrent_kernel.shape[0]
    z_, r_, h_ = slice(0, U), slice(U, 2 * U), slice(2 * U, 3 * U)
    input_bias, recurrent_bias = bias if reset_after else (bias, np.zeros(3 * U))

    def gate(which, x, h):
        return affine(x, kernel[:, which], input_bias[which]) + affine(
            h, recurrent_kernel[:, which], recurrent_bias[which]
        )

    def step(x, state):
        h = f64(state[0])
        z, r = sigmoid(gate(z_, x, h)), sigmoid(gate(r_, x, h))
        candidate = affine(x, kernel[:, h_], input_bias[h_])
        if reset_after:
            candidate = candidate + r * affine(h, recurrent_kernel[:, h_], recurrent_bias[h_])
        else:
            candidate = candidate + affine(r * h, recurrent_kernel[:, h_])
        new = z * h + (1.0 - z) * np.tanh(candidate)
        return new, [new]

    return step


def lstm_cell(kernel, recurrent_kernel, bias):
    """Hochreiter and Schmidhuber 1997 with a forget gate, in the order i, f, c, o; state [h, c]."""
    U = np.shape(recurrent_kernel)[0]

    def step(x, state):
        h, c = f64(state[0]), f64(state[1])
        gates = affine(x, kernel, bias) + affine(h, recurrent_kernel)
        i, f, g, o = (gates[n * U : (n + 1) * U] for n in range(4))
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
        return h, [h, c]

    return step


def stacked_cells(*cells):
    """Each cell's output is the next one's input; the state is a list of the cells' states."""

    def step(x, states):
        new = []
        for cell, state in zip(cells, states, strict=True):
            x, state = cell(x, state)
            new.append(state)
        return x, new

    return step


# Decoders: for one sample. attention(query [Dq], memory [S, Dm], mask [S]) -> (context, weights)


def one_query(attention_function, **weights):
    """A function `(query [Dq], memory [S, Dm], mask [S])` from a layer's reference above."""

    def attention(query, memory, mask):
        context, alignment = attention_function(
            f64(query)[None], memory, memory, mask=np.asarray(mask, bool)[None], **weights
        )
        return context[0], alignment[0]

    return attention


def output_of(state):
    """The hidden vector in the state of a cell, or of the topmost cell of a stack."""
    last = state[-1] if isinstance(state[0], list) else state
    return last[0]


def bahdanau_step(cell, attention, x, state, memory, mask):
    """c_t = attention(s_{t-1}); s_t = cell([x_t; c_t], s_{t-1}): `(output, weights, state)`."""
    context, weights = attention(output_of(state), memory, mask)
    output, state = cell(np.concatenate([f64(x), context]), state)
    return output, weights, state


def luong_step(cell, attention, kernel, bias, x, state, memory, mask):
    """s_t = cell(x_t, s_{t-1}); c_t = attention(s_t); tanh(W_c [c_t; s_t] + b_c), eq. 5."""
    hidden, state = cell(f64(x), state)
    context, weights = attention(hidden, memory, mask)
    return np.tanh(affine(np.concatenate([context, hidden]), kernel, bias)), weights, state


def run_decoder(step, inputs, state, memory, memory_mask=None, mask=None):
    """Teacher forcing over inputs `[T, D]`: `(outputs [T, U], weights [T, S], state)`.

    `step(x, state, memory, memory_mask)`; a masked step keeps the state and gives zeros.
    """
    memory_mask = np.ones(len(memory), bool) if memory_mask is None else memory_mask
    outputs, alignments = [], []
    for t, x in enumerate(inputs):
        output, weights, new_state = step(x, state, f64(memory), memory_mask)
        if mask is None or mask[t]:
            state = new_state
        else:
            output, weights = np.zeros(len(output)), np.zeros(len(weights))
        outputs.append(output)
        alignments.append(weights)
    return np.array(outputs), np.array(alignments), state


def bahdanau_decoder(cell, attention, inputs, state, memory, memory_mask=None, mask=None):
    """Bahdanau section 3.1, one sample."""

    def step(*args):
        return bahdanau_step(cell, attention, *args)

    return run_decoder(step, inputs, state, memory, memory_mask, mask)


def luong_decoder(
    cell, attention, kernel, bias, inputs, state, memory, memory_mask=None, mask=None
):
    """Luong section 3, without input feeding, one sample."""

    def step(*args):
        return luong_step(cell, attention, kernel, bias, *args)

    return run_decoder(step, inputs, state, memory, memory_mask, mask)


# Search


def log_softmax(logits):
    logits = f64(logits)
    largest = logits.max()
    return logits - largest - math.log(sum(math.exp(x - largest) for x in logits))


def greedy_search(step, state, start_token, end_token, max_length, pad_token=0):
    """The likeliest token at each step, for one sample; the first of equals.

    `step(token, state) -> (logits [V], state)` or `(logits, state, weights [S])`. Returns ids of
    max_length (the end token included, then padding), the number of tokens before the end, the sum
    of log-probabilities (the end's included) and the list of weights, one for each step made.
    """
    ids, score, alignments, token = [], 0.0, [], start_token
    while len(ids) < max_length and (not ids or ids[-1] != end_token):
        logits, state, *weights = step(token, state)
        log_probabilities = log_softmax(logits)
        token = int(np.argmax(log_probabilities))
        ids.append(token)
        score += log_probabilities[token]
        alignments.extend(weights)
    length = len(ids) - (1 if ids and ids[-1] == end_token else 0)
    return ids + [pad_token] * (max_length - len(ids)), length, score, alignments

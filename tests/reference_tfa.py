"""tfa.seq2seq of TensorFlow Addons 0.23 in float64 NumPy, for one sample at a time.

Written from the papers and from what the original computes (tests/data/make_tfa_reference.py says
it in words and wrote the files to compare with). Nothing here comes from the package, from Keras or
from TensorFlow.

- Salimans, Kingma 2016, "Weight normalization", https://arxiv.org/abs/1602.07868
- Raffel, Luong, Liu, Weiss, Eck 2017, "Online and linear-time attention by enforcing monotonic
  alignments", https://arxiv.org/abs/1704.00784
- Wu et al. 2016, "Google's neural machine translation system", https://arxiv.org/abs/1609.08144
"""

from typing import Any, NamedTuple

import numpy as np
from reference import f64, log_softmax, sigmoid, softmax_row

# Scores of queries `[T, Dq]` with a memory `[S, Dm]`: `[T, S]`


def bahdanau(query, memory, query_kernel, memory_kernel, v):
    """v^T tanh(W q + U h)."""
    return bahdanau_normalized(
        query,
        memory,
        query_kernel,
        memory_kernel,
        v,
        g=np.sqrt(f64(v) @ f64(v)),
        b=np.zeros(len(v)),
    )


def bahdanau_normalized(query, memory, query_kernel, memory_kernel, v, g, b):
    """(g v / |v|)^T tanh(W q + U h + b), v with the weight normalisation of Salimans and Kingma."""
    query, memory, v = f64(query), f64(memory), f64(v)
    direction = v / np.sqrt(sum(x * x for x in v))
    scores = np.zeros((len(query), len(memory)))
    for t, q in enumerate(query):
        for s, h in enumerate(memory):
            hidden = np.tanh(q @ f64(query_kernel) + h @ f64(memory_kernel) + f64(b))
            scores[t, s] = f64(g) * (direction @ hidden)
    return scores


def luong(query, memory, memory_kernel):
    """q^T (h W), W `[Dm, Dq]`: Luong's "general" with the kernel W^T."""
    return luong_scaled(query, memory, memory_kernel, 1.0)


def luong_scaled(query, memory, memory_kernel, g):
    """g q^T (h W) with a scalar g."""
    return f64(g) * f64(query) @ (f64(memory) @ f64(memory_kernel)).T


# Alignments `[T, S]` from scores `[T, S]`, of which the first `length` of a row count


def softmax_steps(scores, length):
    return np.array([softmax_row(row, np.arange(len(row)) < length) for row in f64(scores)])


def monotonic_step(choose, previous):
    """Raffel eq. 8: alpha_j = p_j sum_{k <= j} alpha'_k prod_{k <= l < j} (1 - p_l).

    choose: p, `[S]`; previous: alpha', the alignment of the step before, `[S]`. The decoder stands
    where the step before has stopped (k), passes by what it does not choose, and stops at j.
    """
    alignment = np.zeros(len(choose))
    for j in range(len(choose)):
        for k in range(j + 1):
            alignment[j] += choose[j] * previous[k] * np.prod(1.0 - choose[k:j])
    return alignment


def monotonic_hard_step(chosen, previous):
    """One-hot at the first chosen entry from the one before on; all 0 if there is none.

    A decoder that has run off the end of the memory attends to nothing ever after.
    """
    alignment = np.zeros(len(chosen))
    for j in range(int(np.argmax(previous)), len(chosen) if previous.any() else 0):
        if chosen[j]:
            alignment[j] = 1.0
            break
    return alignment


def monotonic_steps(scores, length, hard=False):
    """T steps, the first of them from the alignment [1, 0, ..., 0]."""
    alignments, previous = [], np.eye(len(scores[0]))[0]
    for row in f64(scores):
        real = np.arange(len(row)) < length
        if hard:
            previous = monotonic_hard_step(real & (row > 0), previous)
        else:
            previous = monotonic_step(np.where(real, sigmoid(row), 0.0), previous)
        alignments.append(previous)
    return np.array(alignments)


# The wrapper


class WrapperStep(NamedTuple):
    """What a step gives; `output` of the cell, and what is fed to the next step as `attention`."""

    output: Any
    attention: Any
    alignment: Any
    state: Any


def attention_wrapper_step(cell, align, memory, x, state, attention, layer=None, feeding=True):
    """s_t = cell([x_t; a_{t-1}], s_{t-1}); c_t = sum_s alignment_s h_s; a_t = layer([s_t; c_t]).

    cell: `(x [D], state) -> (output [U], state)`.
    align: the alignment `[S]` of a query `[U]`.
    layer: of a vector `[U + Dm]`; without it a_t = c_t.
    feeding: whether the cell sees a_{t-1}.
    """
    x = f64(x)
    output, state = cell(np.concatenate([x, attention]) if feeding else x, state)
    alignment = align(output)
    context = alignment @ f64(memory)
    attention = context if layer is None else layer(np.concatenate([output, context]))
    return WrapperStep(output, attention, alignment, state)


def dense(kernel, bias=None, activation=lambda x: x):
    """A layer for `attention_wrapper_step`."""
    bias = np.zeros(np.shape(kernel)[1]) if bias is None else f64(bias)
    return lambda x: activation(x @ f64(kernel) + bias)


def attention_wrapper(step, inputs, state, attention_size):
    """`WrapperStep`s of inputs `[T, D]`; `step(x, state, attention)`."""
    steps, attention = [], np.zeros(attention_size)
    for x in inputs:
        steps.append(step(x, state, attention))
        state, attention = steps[-1].state, steps[-1].attention
    return steps


# Search. `step(token, state) -> (logits [V], state)` or `(logits, state, alignment [S])`.


class Hypothesis(NamedTuple):
    """A prefix or, if finished, a whole sequence, the end token included."""

    ids: tuple
    log_prob: float
    finished: bool
    state: Any = None
    coverage: Any = 0.0  # sum of its alignments `[S]`
    score: float = 0.0
    parent: int = 0  # its place in the list of the step before


def length_penalty(length, weight):
    """Wu eq. 14: ((5 + length) / (5 + 1))^weight."""
    return (5.0 + length) ** weight / 6.0**weight


def coverage_penalty(coverage, weight):
    """Wu eq. 14: weight sum_s log(min(coverage_s, 1)), over the s that are attended at all."""
    return weight * sum(np.log(min(c, 1.0)) for c in np.ravel(coverage) if c != 0)


def continuations(hypothesis, step, start_token, end_token):
    """Each running hypothesis with each token; a finished one as it is."""
    if hypothesis.finished:
        yield hypothesis
        return
    last = hypothesis.ids[-1] if hypothesis.ids else start_token
    logits, state, *alignment = step(last, hypothesis.state)
    for token, log_prob in enumerate(log_softmax(logits)):
        yield Hypothesis(
            (*hypothesis.ids, token),
            hypothesis.log_prob + log_prob,
            token == end_token,
            state,
            hypothesis.coverage + sum(map(f64, alignment)),
        )


def beam_search(
    step, state, start_token, end_token, steps, width, length_weight=0.0, coverage_weight=0.0
):
    """The lists of hypotheses after each step, the best first, as BeamSearchDecoder keeps them.

    Finished hypotheses stay in the list and compete. One that ends at this very step is ranked by
    the length without its end token and without coverage penalty; later by the length with it. How
    many steps there are is up to the batch: as many as it takes until all is finished.
    """
    kept, history = [Hypothesis((), 0.0, False, state)], []
    while len(history) < steps:
        candidates = []
        for parent, before in enumerate(kept):
            for after in continuations(before, step, start_token, end_token):
                ends_now = after.finished and not before.finished
                score = after.log_prob / length_penalty(len(after.ids) - ends_now, length_weight)
                if before.finished:
                    score += coverage_penalty(after.coverage, coverage_weight)
                candidates.append(after._replace(score=score, parent=parent))
        kept = sorted(candidates, key=lambda h: -h.score)[:width]
        history.append(kept)
    return history


def all_hypotheses(
    step, state, start_token, end_token, max_steps, worth_continuing=lambda hypothesis: True
):
    """Every sequence that ends within `max_steps`, and every one of that length that does not.

    worth_continuing: says of a prefix whether what begins with it is wanted.
    """
    found, running = [], [Hypothesis((), 0.0, False, state)]
    for _ in range(max_steps):
        after = [c for h in running for c in continuations(h, step, start_token, end_token)]
        found += [h for h in after if h.finished]
        running = [h for h in after if not h.finished and worth_continuing(h)]
    return found + running

"""What the searches must find, by trying everything; float64, in plain loops.

A model is a function `step(token, state) -> (logits [V], state, weights [S] or None)` for one
sample. A sequence is a list of tokens, its last the end token if it has one.
"""

import math
from typing import NamedTuple

import numpy as np


class Found(NamedTuple):
    """One sequence: its tokens (with the end token), score, ranking, and weights of each step."""

    tokens: tuple
    score: float
    ranking: float
    weights: list
    state: object


def log_softmax(logits):
    """log p(y) = logits_y - log sum exp logits; all -inf where that is no distribution."""
    logits = np.asarray(logits, "float64")
    largest = logits.max()
    if not math.isfinite(largest):
        return np.full_like(logits, -np.inf)
    return logits - largest - np.log(np.exp(logits - largest).sum())


def length_penalty(count, alpha):
    """Wu et al. 2016, equation 14: (5 + |Y|)^alpha / (5 + 1)^alpha."""
    return (5 + count) ** alpha / (5 + 1) ** alpha


def coverage_penalty(weights, beta, mask=None):
    """Wu et al. 2016, equation 14: beta sum_s log(min(sum_t a_ts, 1)) over the real positions."""
    if not beta:
        return 0.0
    total = 0.0
    for s in range(len(weights[0])):
        if mask is None or mask[s]:
            total += math.log(max(min(sum(row[s] for row in weights), 1.0), 2.0**-126))
    return beta * total


def repeats(tokens, n):
    """Whether n tokens in a row occur twice."""
    grams = [tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1)]
    return n > 0 and len(set(grams)) < len(grams)


def continuations(logits, tokens, end, min_length=0, forbidden=(), n=0):
    """`{token: log-probability}` of what may follow `tokens`."""
    probabilities = log_softmax(logits)
    allowed = {
        y: float(p)
        for y, p in enumerate(probabilities)
        if p > -np.inf and y not in forbidden and not repeats([*tokens, y], n)
    }
    others = {y: p for y, p in allowed.items() if y != end}
    return others if others and len(tokens) < min_length else allowed


def every_sequence(step, state, start, end, max_length, **rules):
    """`(tokens, score, weights, state)` of all sequences that end, or have `max_length` tokens."""
    todo, done = [((), 0.0, [], start, state)], []
    while todo:
        tokens, score, weights, last, state = todo.pop()
        logits, following, row = step(last, state)
        for y, p in continuations(logits, tokens, end, **rules).items():
            longer = (*tokens, y), score + p, [*weights, row]
            if y == end or len(tokens) + 1 == max_length:
                done.append((*longer, following))
            else:
                todo.append((*longer, y, following))
    return done


def ranked(sequences, alpha=0.0, beta=0.0, mask=None):
    """The sequences as `Found`, best ranking first."""
    found = [
        Found(
            tokens,
            score,
            score / length_penalty(len(tokens), alpha) + coverage_penalty(weights, beta, mask),
            weights,
            state,
        )
        for tokens, score, weights, state in sequences
    ]
    return sorted(found, key=lambda x: -x.ranking)


def beam_search(
    step, state, start, end, max_length, width, alpha=0.0, beta=0.0, mask=None, **rules
):
    """All sequences that a beam search of this width finishes, best first; never stops early.

    At each step the continuations of the live hypotheses are sorted by score: those among the
    first `width` that end are finished; the first `width` that do not end live on, and are
    finished as they are at `max_length`.
    """
    live, finished = [((), 0.0, [], start, state)], []
    for _ in range(max_length):
        candidates = []
        for tokens, score, weights, last, old in live:
            logits, new, row = step(last, old)
            for y, p in continuations(logits, tokens, end, **rules).items():
                candidates.append(((*tokens, y), score + p, [*weights, row], y, new))
        candidates.sort(key=lambda x: -x[1])
        finished += [x for x in candidates[:width] if x[3] == end]
        live = [x for x in candidates if x[3] != end][:width]
    return ranked([(x[0], x[1], x[2], x[4]) for x in finished + live], alpha, beta, mask)

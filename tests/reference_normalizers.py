"""Sparse normalisers and monotonic attention in float64 NumPy, from the papers' definitions.

Nothing here comes from the package, from Keras or from TensorFlow, and nothing is fast.

- Martins, Astudillo 2016, "From softmax to sparsemax: a sparse model of attention and multi-label
  classification", https://arxiv.org/abs/1602.02068
- Peters, Niculae, Martins 2019, "Sparse sequence-to-sequence models",
  https://arxiv.org/abs/1905.05702
- Raffel, Luong, Liu, Weiss, Eck 2017, "Online and linear-time attention by enforcing monotonic
  alignments", https://arxiv.org/abs/1704.00784
"""

import itertools

import numpy as np


def entmax_row(z, alpha):
    """Peters: [(alpha - 1) z - tau]_+^(1 / (alpha - 1)), tau found by bisection.

    alpha = 2 is sparsemax (Martins). The sum falls as tau rises: between max - 1,
    where the largest entry alone gives 1, and max, where nothing is left.
    """
    z = (alpha - 1) * (np.asarray(z, np.float64) - np.max(z))

    def weights(tau):
        return np.maximum(z - tau, 0) ** (1 / (alpha - 1))

    low, high = -1.0, 0.0
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if weights(middle).sum() >= 1 else (low, middle)
    return weights(low)


def entmax(scores, mask=None, alpha=2.0):
    """`entmax_row` over the allowed entries of each row of scores `[..., S]`; the others are 0."""
    scores = np.asarray(scores, np.float64)
    allowed = np.ones(scores.shape, bool) if mask is None else np.broadcast_to(mask, scores.shape)
    weights = np.zeros(scores.shape)
    for index in np.ndindex(*scores.shape[:-1]):
        kept = allowed[index]
        if kept.any():
            weights[index][kept] = entmax_row(scores[index][kept], alpha)
    return weights


def entmax_jacobian(weights, alpha):
    """Peters: diag(s) - s s^T / sum(s), s = p^(2 - alpha) where p > 0, else 0.

    alpha = 2 gives that of Martins, where s is 1 on the support.
    """
    s = np.array([p ** (2 - alpha) if p > 0 else 0.0 for p in weights])
    return np.diag(s) - np.outer(s, s) / s.sum()


def monotonic(p, previous):
    """Raffel, section 2.3, one row: p_s sum_(k <= s) previous_k prod_(k <= l < s) (1 - p_l)."""
    p, previous = np.asarray(p, np.float64), np.asarray(previous, np.float64)
    weights = np.zeros(len(p))
    for s in range(len(p)):
        for k in range(s + 1):
            weights[s] += p[s] * previous[k] * np.prod(1 - p[k:s])
    return weights


def monotonic_by_sampling(p, previous):
    """The process of Raffel, algorithm 1, over all outcomes of its coin flips, one row.

    From the entry attended before, k, entries are inspected one after the other; each is taken
    with its probability, the first that is taken being attended to.
    """
    weights = np.zeros(len(p))
    for flips in itertools.product([0, 1], repeat=len(p)):
        chance = np.prod([p[s] if flip else 1 - p[s] for s, flip in enumerate(flips)])
        for k, start in enumerate(previous):
            taken = [s for s in range(k, len(p)) if flips[s]]
            if taken:
                weights[taken[0]] += start * chance
    return weights


def monotonic_hard(p, previous):
    """Raffel, algorithm 1, one row: the first entry from the one attended before with p > 1/2."""
    weights = np.zeros(len(p))
    if np.any(previous):
        for s in range(int(np.argmax(previous)), len(p)):
            if p[s] > 0.5:
                weights[s] = 1
                break
    return weights

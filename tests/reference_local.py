"""Local attention in NumPy, float64, written from the paper, section 3.2 of

- Luong, Pham, Manning 2015, "Effective approaches to attention-based neural machine translation",
  https://arxiv.org/abs/1508.04025

All pairs of query and key are computed and those outside of the window dropped. A masked step, of
the queries or of the memory, is left out of the sequence before anything is counted.
"""

import numpy as np


def monotonic_positions(query_mask):
    """local-m: p_t = t, `[B, T]`; NaN where the query is masked."""
    positions = np.full(query_mask.shape, np.nan)
    for row, real in zip(positions, query_mask, strict=True):
        row[real] = np.arange(real.sum())
    return positions


def predicted_positions(query, W_p, v_p, memory_mask):
    """local-p, equation 9: p_t = S sigmoid(v_p^T tanh(W_p h_t)), `[B, T]`; W_p is `[U, Dq]`."""
    positions = np.zeros(query.shape[:2])
    for b, t in np.ndindex(*positions.shape):
        logit = v_p @ np.tanh(W_p @ query[b, t])
        positions[b, t] = memory_mask[b].sum() / (1 + np.exp(-logit))
    return positions


def location_scores(query, W, memory_mask):
    """Section 3.1: a_t = softmax(W h_t); W is `[M, Dq]`; -inf for words near the end."""
    scores = np.full((*query.shape[:2], memory_mask.shape[1]), -np.inf)
    for b, t in np.ndindex(*query.shape[:2]):
        for place, s in enumerate(np.flatnonzero(memory_mask[b])[: len(W)]):
            scores[b, t, s] = W[place] @ query[b, t]
    return scores


def local_attention(scores, value, positions, D, memory_mask, mask, gaussian):
    """Context and weights: a softmax over the window, for local-p times equation 10.

    scores, mask: `[B, T, S]`; the mask holds all masks of the caller, those of the query too.
    positions: `[B, T]`. gaussian: whether equation 10 applies.
    """
    weights = np.zeros(scores.shape)
    for b, t in np.ndindex(*scores.shape[:2]):
        inside = [
            (s, place)
            for place, s in enumerate(np.flatnonzero(memory_mask[b]))
            if mask[b, t, s] and scores[b, t, s] != -np.inf and abs(place - positions[b, t]) <= D
        ]
        if not inside:
            continue
        steps, places = np.transpose(inside)
        exps = np.exp(scores[b, t, steps] - scores[b, t, steps].max())
        aligned = exps / exps.sum()
        if gaussian:
            sigma = D / 2
            aligned *= np.exp(-((places - positions[b, t]) ** 2) / (2 * sigma**2))
        weights[b, t, steps] = aligned
    used = weights.any(axis=1)[..., None]  # what nobody attends to may be NaN
    return np.einsum("bts,bsd->btd", weights, np.where(used, value, 0)), weights

"""The losses in float64 NumPy, from the papers' equations, step by step.

Nothing here comes from the package, from Keras or from TensorFlow.

- Szegedy et al. 2016, "Rethinking the Inception architecture for computer vision",
  https://arxiv.org/abs/1512.00567
- See, Liu, Manning 2017, "Get to the point: summarization with pointer-generator networks",
  https://arxiv.org/abs/1704.04368
- Chen, Matusov, Khadivi, Peter 2016, "Guided alignment training for topic-aware neural machine
  translation", https://arxiv.org/abs/1607.01628
- Tachibana, Uenoyama, Aihara 2018, "Efficiently trainable text-to-speech system based on deep
  convolutional networks with guided attention", https://arxiv.org/abs/1710.08969

Each of the first functions is for one sample and gives a list of `(t, loss)` of its real steps.
"""

import math

import numpy as np


def log_softmax(logits):
    logits = np.asarray(logits, np.float64)
    largest = logits.max()
    return logits - largest - math.log(sum(math.exp(x - largest) for x in logits))


def cross_entropy(ids, logits, smoothing=0.0, pad_token=0):
    """Szegedy, section 7: the target distribution q' = (1 - eps) [k = y] + eps / V."""
    steps = []
    for t, y in enumerate(ids):
        if y != pad_token:
            log_p = log_softmax(logits[t])
            target = np.full(len(log_p), smoothing / len(log_p))
            target[int(y)] += 1 - smoothing
            steps.append((t, -sum(q * x for q, x in zip(target, log_p, strict=True))))
    return steps


def coverage(ids, weights):
    """See, equation 12, with the coverage of equation 10."""
    steps, seen = [], np.zeros(np.shape(weights)[-1])
    for t, y in enumerate(ids):
        if y != 0:
            a = np.asarray(weights[t], np.float64)
            steps.append((t, sum(min(x, c) for x, c in zip(a, seen, strict=True))))
            seen = seen + a
    return steps


def guided(gold, weights, kind="cross_entropy"):
    """Chen: each row of the gold alignment made a distribution."""
    steps = []
    for t, links in enumerate(np.asarray(gold, np.float64)):
        if links.sum() > 0:
            A, a = links / links.sum(), np.asarray(weights[t], np.float64)
            if kind == "squared":
                steps.append((t, sum((x - y) ** 2 for x, y in zip(A, a, strict=True)) / 2))
            else:
                loss = -sum(x * math.log(y) for x, y in zip(A, a, strict=True) if x > 0)
                steps.append((t, loss))
    return steps


def diagonal(pairs, weights, width=0.2):
    """Tachibana, guided attention, on the real steps only, which are taken out first."""
    pairs = np.asarray(pairs, bool)
    rows, columns = np.flatnonzero(pairs.any(1)), np.flatnonzero(pairs.any(0))
    steps = []
    for n, t in enumerate(rows):
        total = 0.0
        for m, s in enumerate(columns):
            apart = m / len(columns) - n / len(rows)
            total += weights[t][s] * (1 - math.exp(-(apart**2) / (2 * width**2)))
        steps.append((t, total / len(columns)))
    return steps


def mean(function, y_true, y_pred, sample_weight=None, **arguments):
    """Sum of the losses of all real steps of the batch, times weights `[B, T]`, over their number.

    0 if there are none.
    """
    total, count = 0.0, 0
    for b in range(len(y_true)):
        for t, loss in function(y_true[b], y_pred[b], **arguments):
            total += loss * (1.0 if sample_weight is None else float(sample_weight[b][t]))
            count += 1
    return total / count if count else 0.0

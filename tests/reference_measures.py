"""Measures of alignments in plain loops, written from the definitions; one sentence at a time."""

import math


def _kept(weights, query_mask, value_mask):
    """Rows of real steps that have weight, with the weights of real source tokens only."""
    rows = []
    for t, row in enumerate(weights):
        kept = [float(a) for s, a in enumerate(row) if value_mask[s]]
        if query_mask[t] and sum(kept) > 0:
            rows.append(kept)
    return rows


def entropy(weights, query_mask, value_mask, normalized=False):
    """Mean over steps of -sum p log p, with p the row made to sum to 1."""
    total, rows = 0.0, _kept(weights, query_mask, value_mask)
    for row in rows:
        for a in row:
            p = a / sum(row)
            total -= p * math.log(p) if p > 0 else 0.0
    sources = sum(map(bool, value_mask))
    largest = math.log(sources) if normalized and sources > 1 else 1.0
    return total / len(rows) / largest if rows else math.nan


def monotonicity(weights, query_mask, value_mask, tolerance):
    """Share of steps whose mean position is not behind that of the step before."""
    places = [s for s, real in enumerate(value_mask) if real]
    means = [
        sum(place * a for place, a in zip(places, row, strict=True)) / sum(row)
        for row in _kept(weights, query_mask, value_mask)
    ]
    steps = [
        later - earlier >= -tolerance for earlier, later in zip(means, means[1:], strict=False)
    ]
    return sum(steps) / len(steps) if steps else math.nan


def coverage_vector(weights, query_mask, value_mask):
    sums = []
    for s in range(len(value_mask)):
        column = [float(row[s]) for t, row in enumerate(weights) if query_mask[t]]
        sums.append(sum(column) if value_mask[s] else 0.0)
    return sums


def coverage(weights, query_mask, value_mask):
    """Mean over real source tokens of what they got, at most 1 each."""
    sums = coverage_vector(weights, query_mask, value_mask)
    shares = [min(1.0, c) for c, real in zip(sums, value_mask, strict=True) if real]
    return sum(shares) / len(shares) if shares else math.nan


def links(weights, query_mask, value_mask, threshold=0.0):
    found = set()
    for t, row in enumerate(weights):
        best = None
        for s, a in enumerate(row):
            if value_mask[s] and query_mask[t] and a > 0 and (best is None or a > row[best]):
                best = s
        if best is not None and row[best] >= threshold:
            found.add((best, t))
    return found


def error_rate(found, sure, possible):
    """1 - (|A & S| + |A & P|) / (|A| + |S|), link by link."""
    right = sum(link in sure for link in found)
    right += sum(link in sure or link in possible for link in found)
    return 1 - right / (len(found) + len(sure))

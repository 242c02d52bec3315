"""Error rates of pronunciations: phoneme error rate and word error rate."""

from typing import NamedTuple


def edit_distance(source, target):
    """Returns the least number of insertions, deletions and substitutions (Levenshtein)."""
    row = list(range(len(target) + 1))
    for i, left in enumerate(source, start=1):
        diagonal, row[0] = row[0], i
        for j, right in enumerate(target, start=1):
            substituted = diagonal + (left != right)
            diagonal = row[j]
            row[j] = min(substituted, row[j] + 1, row[j - 1] + 1)
    return row[-1]


class ErrorRates(NamedTuple):
    phoneme: float
    word: float
    words: int

    def __str__(self):
        return (
            f"phoneme error rate {self.phoneme:.2%}, word error rate {self.word:.2%} "
            f"({self.words:,} words)"
        )


def error_rates(predictions, references):
    """Returns the error rates of predictions, one a word.

    Args:
        predictions: a list of phone lists.
        references: for each word the list of its pronunciations. A word is right if any of them
            is met. The phoneme error rate is the sum of the edit distances to the nearest
            pronunciation over the sum of those pronunciations' lengths.
    """
    if not references or len(predictions) != len(references):
        raise ValueError(
            "Expected as many `predictions` as `references`, and at least one, "
            f"got {len(predictions)} and {len(references)}"
        )
    errors = phones = wrong = 0
    for predicted, listed in zip(predictions, references, strict=True):
        distance, length = min(
            (edit_distance(predicted, reference), len(reference)) for reference in listed
        )
        errors += distance
        phones += length
        wrong += distance > 0
    return ErrorRates(errors / phones, wrong / len(references), len(references))

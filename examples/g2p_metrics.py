"""Error rates of pronunciations: phoneme error rate and word error rate."""

from itertools import pairwise
from typing import NamedTuple

LENGTHS = (0, 4, 6, 8, 10, 12, 100)  # letters: from above one to the next


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


def error_rates_by_length(words, predictions, references):
    """Returns a row for each range of lengths of `words` that occurs: letters, words, errors.

    Args:
        words: the words as they are written.
        predictions, references: as of `error_rates`.
    """
    rows = []
    for shortest, longest in pairwise(LENGTHS):
        inside = [n for n, word in enumerate(words) if shortest < len(word) <= longest]
        if inside:
            chosen = ([side[n] for n in inside] for side in (predictions, references))
            letters = [len(words[n]) for n in inside]
            row = {"from": min(letters), "to": max(letters), "words": len(inside)}
            rows.append({**row, "word_error": error_rates(*chosen).word})
    return rows

"""Word alignments as links between tokens, and how many of them are right."""

import re
from typing import NamedTuple

import numpy as np

from keras_attention.measures import real_weights


class Links(NamedTuple):
    """Gold links of a sentence: sets of pairs (source token, target token), counted from 0.

    Attributes:
        sure: links that an alignment must have.
        possible: links that it may have; the sure ones are among them.
    """

    sure: set
    possible: set


def alignment_links(weights, query_mask=None, value_mask=None, threshold=0.0):
    """The links of an alignment: for each target token the source token with the most weight.

    One link a target token, as in section 5.4 of
    [Luong et al., 2015](https://arxiv.org/abs/1508.04025).

    Args:
        weights: `[T, S]` or `[B, T, S]`.
        query_mask: `[T]` or `[B, T]`, True = a real step.
        value_mask: `[S]` or `[B, S]`, True = a real source token.
        threshold: a target token whose largest weight is smaller has no link.

    Returns:
        A set of pairs (source token, target token), counted from 0; for `[B, T, S]` a list of
        such sets. Of equal weights the first counts.

    Raises:
        ValueError: if weights are no attention weights or a mask does not fit.

    Example:

    >>> sorted(alignment_links([[0.9, 0.1, 0.0], [0.4, 0.3, 0.3]]))
    [(0, 0), (0, 1)]
    >>> sorted(alignment_links([[0.9, 0.1, 0.0], [0.4, 0.3, 0.3]], threshold=0.5))
    [(0, 0)]
    """
    rows, steps, _ = real_weights(weights, query_mask, value_mask)
    links = [
        {(int(row.argmax()), t) for t, row in enumerate(sentence) if real[t]}
        for sentence, real in zip(rows, steps & (rows.max(-1, initial=0) >= threshold), strict=True)
    ]
    return links if np.ndim(weights) == 3 else links[0]


def alignment_error_rate(links, sure, possible=None):
    """How far an alignment is from one made by hand; 0 is best.

        AER = 1 - (|A & S| + |A & P|) / (|A| + |S|)

    Section 5 of [Och and Ney, 2003](https://aclanthology.org/J03-1002/): A the links found, S
    the sure ones, P the possible ones, with S a part of P. For several sentences the counts are
    summed before they are divided.

    Args:
        links: a set of pairs (source token, target token), or the weights `[T, S]` that
            `alignment_links` takes them from; for several sentences, a list of sets or weights
            `[B, T, S]`.
        sure: such a set, or for several sentences a list of sets.
        possible: the same, None for no links that are possible only. Sure links count as
            possible whether they are listed again or not.

    Returns:
        A number in [0, 1]; 0 if there are neither links nor sure links.

    Raises:
        ValueError: if the numbers of sentences differ, or links are no pairs.

    Example: one link is sure, one possible, one wrong: 1 - (1 + 2) / (3 + 2)

    >>> sure, possible = read_links("0-0 1-1 1?2")
    >>> alignment_error_rate({(0, 0), (1, 2), (2, 1)}, sure, possible)
    0.4
    """
    if isinstance(sure, (set, frozenset)):
        links, sure = [links], [sure]
        possible = None if possible is None else [possible]
    possible = [set()] * len(sure) if possible is None else possible
    if not len(links) == len(sure) == len(possible):
        raise ValueError(
            "`links`, `sure` and `possible` must have as many sentences. Received "
            f"{len(links)}, {len(sure)} and {len(possible)}."
        )
    hits = total = 0
    for found, certain, perhaps in zip(links, sure, possible, strict=True):
        found = found if isinstance(found, (set, frozenset)) else alignment_links(found)
        for name, pairs in (("links", found), ("sure", certain), ("possible", perhaps)):
            _check_pairs(name, pairs)
        hits += len(found & certain) + len(found & (certain | perhaps))
        total += len(found) + len(certain)
    return 1 - hits / total if total else 0.0


def read_links(line, first=0):
    """Links from a line of a file of alignments, one line a sentence.

    Args:
        line: links with spaces between them: "2-1", source token 2 and target token 1, is sure,
            "2?1" or "2p1" only possible.
        first: the number of the first token, 0 or 1.

    Returns:
        `Links(sure, possible)`: two sets of pairs (source token, target token), counted from 0:
        columns and rows of weights `[T, S]`.

    Raises:
        ValueError: if a pair is none of these, naming it.

    Example:

    >>> sure, possible = read_links("0-0 1-2 2?1")
    >>> sorted(sure), sorted(possible)
    ([(0, 0), (1, 2)], [(0, 0), (1, 2), (2, 1)])
    """
    sure, possible = set(), set()
    for pair in line.split():
        match = re.fullmatch(r"([0-9]{1,9})([-?p])([0-9]{1,9})", pair)
        source, target = (int(match[i]) - first for i in (1, 3)) if match else (-1, -1)
        if min(source, target) < 0:
            raise ValueError(
                f"`line` must hold pairs such as 0-0 or, if only possible, 0?1, counted from "
                f"{first}. Received {pair!r:.80}."
            )
        possible.add((source, target))
        if match[2] == "-":
            sure.add((source, target))
    return Links(sure, possible)


def _check_pairs(name, pairs):
    wanted = isinstance(pairs, (set, frozenset)) and all(
        isinstance(pair, tuple) and len(pair) == 2 for pair in pairs
    )
    if not wanted:
        raise ValueError(
            f"`{name}` must be a set of pairs (source, target), or a list of such sets, one a "
            f"sentence. Received {pairs!r}."
        )

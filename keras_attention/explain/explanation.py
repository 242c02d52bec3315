"""What came of several masks together: who may attend to what, and which mask forbids the rest."""

import dataclasses
import string

import numpy as np

# A picture in letters helps while it fits on a screen.
MOST_QUERIES, MOST_KEYS = 40, 80
EXAMPLES = 3  # of rows without a key


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class MaskExplanation:
    """Masks of one attention, together and one by one; printed, it says what they do.

    Args:
        mask: booleans `[B, T, S]`, with heads `[B, N, T, S]`, or `[T, S]`, True = may attend; None
            where it is not known: inside of a compiled function, or of a layer of another library.
        parts: each mask by name, in the shape of `mask`.
        lost: sentences that say where a mask was lost on the way.
        name: what was explained.

    Returns:
        The explanation; `str()` of it is what `explain_mask` prints.

    Raises:
        IndexError: by `blocked_by`, where `mask` has no such place.

    Example:

    >>> from keras_attention import causal_mask, explain_mask
    >>> explanation = explain_mask({"causal": causal_mask(3), "own": [[1, 1, 1]]}, file=None)
    >>> explanation.mask.astype(int)
    array([[1, 0, 0],
           [1, 1, 0],
           [1, 1, 1]])
    >>> explanation.blocked_by(0, 2)
    ('causal',)
    """

    mask: np.ndarray | None
    parts: dict
    lost: tuple = ()
    name: str = "mask"

    @property
    def empty_rows(self):
        """Indices of the queries that may attend to nothing, `[n, 2]`: (b, t), or (b, head, t)."""
        return np.argwhere(~self.mask.any(axis=-1))

    @property
    def unseen_keys(self):
        """Indices of the keys that no query may attend to, `[n, 2]`: (b, s), or (b, head, s)."""
        return np.argwhere(~self.mask.any(axis=-2))

    def blocked_by(self, *index):
        """Names of the masks that forbid one pair; none if it may attend.

        Args:
            *index: the place in `mask`: (t, s), (b, t, s) or (b, head, t, s).

        Returns:
            A tuple of names.

        Raises:
            IndexError: if there is no such place.
        """
        if len(index) != self.mask.ndim:
            raise IndexError(
                f"`index` must name a place in the mask of shape {self.mask.shape}. "
                f"Received: {index}."
            )
        return tuple(name for name, part in self.parts.items() if not part[index])

    def counts(self):
        """How many pairs each mask forbids, and how many of them no other mask forbids.

        Returns:
            A dictionary from the name to `(pairs, alone)`.
        """
        blockers = sum((~part).astype(np.int32) for part in self.parts.values())
        return {
            name: (int((~part).sum()), int((~part & (blockers == 1)).sum()))
            for name, part in self.parts.items()
        }

    def __str__(self):
        parts = [self._summary(), *self._table(), *self._picture(), *self._rows(), *self._lost()]
        return "\n".join(parts)

    def __repr__(self):
        return f"<MaskExplanation of {self._summary()}>"

    # The paragraphs of the text.

    def _summary(self):
        if self.mask is None:
            return f"{self.name}: which pairs are blocked is not known here"
        shape = ", ".join(map(str, self.mask.shape))
        return f"{self.name}: {self.mask.sum()} of {self.mask.size} pairs may attend, [{shape}]"

    def _table(self):
        if self.mask is None:
            names = ", ".join(self.parts) or "none"
            return [f"  masks that arrive: {names}"]
        if not self.parts:
            return ["  no mask: every query may attend to every key"]
        width = max(len("mask"), *map(len, self.parts))
        lines = [f"  {'mask':{width}} {'blocks':>9} {'alone':>9}"]
        for name, (pairs, alone) in self.counts().items():
            lines.append(f"  {name:{width}} {pairs:9} {alone:9}")
        return lines

    def _picture(self):
        """The first sample and head in letters."""
        if self.mask is None or not self.parts or self.mask.size == 0:
            return []
        queries, keys = self.mask.shape[-2:]
        if queries > MOST_QUERIES or keys > MOST_KEYS or len(self.parts) > 26:
            return []
        first = (0,) * (self.mask.ndim - 2)
        signs = dict(zip(self.parts, string.ascii_lowercase, strict=False))
        where = ("", "sample 0", "sample 0, head 0")[min(len(first), 2)]
        meaning = ", ".join(f"{sign} {name}" for name, sign in signs.items())
        lines = [f"  {where + ': ' if where else ''}. may attend; blocked by {meaning}; # several"]
        for query in range(queries):
            row = ""
            for key in range(keys):
                blockers = self.blocked_by(*first, query, key)
                row += "." if not blockers else signs[blockers[0]] if len(blockers) == 1 else "#"
            lines.append(f"  {query:3} {row}")
        return lines

    def _rows(self):
        if self.mask is None or not len(self.empty_rows):
            return []
        rows = self.empty_rows
        total = self.mask[..., 0].size if self.mask.shape[-1] else len(rows)
        lines = [f"  queries that may attend to nothing (output 0): {len(rows)} of {total}"]
        causes = {}
        for row in rows:
            causes.setdefault(self._cause(tuple(row)), []).append(row)
        for cause, found in causes.items():
            places = "; ".join(_place(row) for row in found[:EXAMPLES])
            more = f"; and {len(found) - EXAMPLES} more" if len(found) > EXAMPLES else ""
            lines.append(f"    {cause}: {places}{more}")
        return lines

    def _cause(self, row):
        if self.mask.shape[-1] == 0:
            return "there are no keys"
        single = [name for name, part in self.parts.items() if not part[row].any()]
        if single:
            return " and ".join(single)
        return " + ".join(name for name, part in self.parts.items() if not part[row].all())

    def _lost(self):
        return [f"  lost: {sentence}" for sentence in self.lost]


def _place(row):
    *outer, query = row
    names = ("sample", "head")[: len(outer)]
    words = [f"{name} {index}" for name, index in zip(names, outer, strict=False)]
    return ", ".join([*words, f"query {query}"])

"""What is known of the pairs of a query and a key, part by part: who may look, what is added."""

from typing import Any, NamedTuple

from keras import ops

from keras_attention.masks import causal_mask, combine_masks, key_distance, window_mask


class Pairs(NamedTuple):
    """Masks and biases of scores `[..., T, S]`, not merged yet.

    So blocks of the scores need not read a mask of all pairs, nor need there be one. All tensors
    broadcast to the scores and have their rank, or are `[T, S]`.

    Attributes:
        rows: boolean `[..., T, 1]`, False for queries that attend to nothing; or None.
        columns: boolean `[..., 1, S]`, False for keys that nobody attends to; or None.
        mask: boolean `[..., T, S]`, T or S may be 1; or None.
        bias: floating `[..., T, S]`, T or S may be 1; where it is -inf, `mask` is False; or None.
        slopes: floating `[..., 1, 1]`, what a score loses for each position between query and
            key; or None.
        causal: whether a query sees no key behind its own position. The last query stands at the
            last key.
        window: None, or a query sees only keys less than so many positions away.
        sizes: `(T, S)`, numbers or scalar tensors, for `slopes`, `causal` and `window`.
    """

    rows: Any = None
    columns: Any = None
    mask: Any = None
    bias: Any = None
    slopes: Any = None
    causal: bool = False
    window: Any = None
    sizes: Any = None

    def map(self, function):
        """With a function applied to each tensor, which gives None for None."""
        names = ("rows", "columns", "mask", "bias", "slopes")
        return self._replace(**{name: function(getattr(self, name)) for name in names})

    def merged(self):
        """The same in one mask and one bias, each of which may be None."""
        bias = self.bias
        if self.slopes is not None:
            distance = ops.abs(ops.cast(key_distance(*self.sizes), self.slopes.dtype))
            lost = self.slopes * distance
            bias = -lost if bias is None else bias - ops.cast(lost, bias.dtype)
        causal = causal_mask(*self.sizes) if self.causal else None
        near = None if self.window is None else window_mask(*self.sizes, window=self.window)
        mask = combine_masks(self.rows, self.columns, self.mask, causal, near)
        return Pairs(mask=mask, bias=bias)

    def queries(self):
        """True where a query may attend to a key, `[..., T or 1, 1]`; None: all of them may."""
        if self.mask is not None:
            return ops.any(self.merged().mask, axis=-1, keepdims=True)
        if self.sizes is None or not self._by_distance:
            found = None if self.columns is None else ops.any(self.columns, -1, keepdims=True)
            return combine_masks(self.rows, found)
        steps, keys = self.sizes
        if self.columns is None and _at_most(steps, keys):  # each sees the key at its own place
            return self.rows
        own = ops.arange(steps, dtype="int32") + (keys - steps)
        first = 0 * own if self.window is None else own - self.window + 1
        end = own + (1 if self.causal else self.window)
        flags = None if self.columns is None else self.columns[..., 0, :]
        return combine_masks(self.rows, _any_between(flags, first, end, keys)[..., None])

    def keys(self):
        """True where a query may attend to a key, `[..., S or 1, 1]`; None: to all of them."""
        if self.mask is not None:
            return ops.any(self.merged().mask, axis=-2)[..., None]
        columns = None if self.columns is None else ops.swapaxes(self.columns, -1, -2)
        if self.sizes is None or not self._by_distance:
            found = None if self.rows is None else ops.any(self.rows, -2, keepdims=True)
            return combine_masks(columns, found)
        steps, keys = self.sizes
        if self.rows is None and _at_most(keys, steps):  # the query at its own place sees it
            return columns
        own = ops.arange(keys, dtype="int32") + (steps - keys)
        first = own if self.causal else own - self.window + 1
        end = 0 * own + steps if self.window is None else own + self.window
        flags = None if self.rows is None else self.rows[..., 0]
        return combine_masks(columns, _any_between(flags, first, end, steps)[..., None])

    @property
    def _by_distance(self):
        return self.causal or self.window is not None


def _any_between(flags, first, end, size):
    """Whether any of flags `[..., size]` (None: all) is True from `first` to before `end`, `[n]`.

    Returns:
        Booleans `[..., n]`.
    """
    first, end = (ops.minimum(ops.maximum(x, 0), size) for x in (first, end))
    if flags is None:
        return first < end
    counts = ops.cumsum(ops.cast(flags, "int32"), axis=-1)
    counts = ops.pad(counts, [(0, 0)] * (len(counts.shape) - 1) + [(1, 0)])
    return ops.take(counts, first, axis=-1) < ops.take(counts, end, axis=-1)


def _at_most(a, b):
    """Whether a <= b is known; sizes may be tensors."""
    return isinstance(a, int) and isinstance(b, int) and a <= b

"""How multi-head attention keeps the keys and values of its own past."""

from keras import ops

from keras_attention import cache as caches
from keras_attention.checks import check_positive
from keras_attention.layers.memory import Source
from keras_attention.layers.places import Places


class HeadCache:
    """The cache of a layer with heads, see `keras_attention.cache`."""

    @property
    def drops_old_steps(self):
        """Whether a cache keeps no more than a window of steps."""
        return self._sliding_window is not None

    def start_cache(self, batch_size, max_length=None):
        """The cache before the first step, for calls with `cache=`.

        Args:
            batch_size: B, a number or a scalar tensor.
            max_length: the number of steps that it has room for, which makes all its shapes
                fixed; None for a cache that grows. With a sliding window no more than the steps
                inside of the window are kept, and older ones drop out.

        Returns:
            A dictionary of tensors, the batch first, or scalars: plain values that can be
            gathered and carried through loops.

        Raises:
            ValueError: if a number is no positive integer.
        """
        if max_length is not None:
            check_positive("max_length", max_length)
        if not hasattr(batch_size, "dtype") and batch_size != 0:
            check_positive("batch_size", batch_size)
        kept = None if self._sliding_window is None else self._sliding_window - 1
        rolling = None if kept is None or (max_length or kept + 1) <= kept else kept
        one = (1,) if self._grouped else ()
        shapes = (
            (self._num_key_value_heads, *one, size) for size in (self._key_dim, self._value_dim)
        )
        return caches.start(batch_size, *shapes, self.compute_dtype, max_length, rolling)

    def _append(self, cache, steps, mask, positions):
        shape = tuple(steps.shape)
        if len(shape) != 3:
            raise ValueError(f"A `cache` takes steps [B, T, D]. Received shape {shape}.")
        cache, visible = caches.split_visible(cache)
        caches.check_structure(cache)
        rows = cache["next"].shape[0]
        if None not in (rows, steps.shape[0]) and rows != steps.shape[0]:
            raise ValueError(
                "`cache` is of another layer or batch: its keys have shape "
                f"{tuple(cache['keys'].shape)}, the query has a batch of {steps.shape[0]}."
            )
        counted, following = caches.next_positions(cache, mask, ops.shape(steps)[1])
        if positions is not None:
            counted = ops.zeros_like(counted) + positions
            following = counted[:, -1] + 1
        used = None if mask is None else mask[..., None]
        keys, values = self._project(steps, steps, used, counted)
        rolling = self._rolling(cache)
        cache, seen = caches.append(cache, keys, values, mask, counted, following, rolling)
        places = Places(counted, seen["positions"])
        return Source(seen["keys"], seen["values"], seen["mask"], places, True, cache, visible)

    def _rolling(self, cache):
        """The number of slots of a rolling cache, or None; an error if it is of another window."""
        if "length" in cache or self._sliding_window is None:
            return None
        slots, kept = cache["mask"].shape[1], self._sliding_window - 1
        if slots not in (None, kept):
            raise ValueError(
                f"`cache` is of another layer: it keeps {slots} steps, a `sliding_window` of "
                f"{self._sliding_window} needs {kept}."
            )
        return kept

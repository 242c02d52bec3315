"""What a layer keeps of the keys and values: a projected memory, an alignment, a cache."""

import keras
from keras import ops

from keras_attention import masks
from keras_attention.attend import hide
from keras_attention.layers import alignment as alignments
from keras_attention.layers.places import as_positions, counted


class LayerMemory:
    """Projects keys and values once, for many calls; all of it plain values.

    A layer says how by `_project_key`, `_project_value` and `_place`.
    """

    def precompute(self, value, key=None, value_mask=None, key_positions=None):
        """Projects the memory once, for many calls `layer(query, memory=...)`.

        Args:
            value: `[B, S, Dv]`.
            key: `[B, S, Dk]`, by default `value`.
            value_mask: `[B, S]`, True = may be attended; by default the Keras mask of `value`.
            key_positions: `[S]` or `[B, S]` integers, where a layer's keys know their positions
                (rotary ones); by default 0, 1, ...

        Returns:
            A tuple of tensors: projected keys, projected values and, if there is a mask, the
            mask. A plain value that can be repeated, gathered and carried through loops.

        Raises:
            ValueError: if the layer is not built yet, or the arguments are the symbolic tensors
                of a Functional model (there, call `layer(query, value)`).
        """
        if not self.built:
            raise ValueError(
                f"{type(self).__name__} must be built before `precompute`: call the layer once, "
                "or call its `build(query_shape, value_shape)`."
            )
        if any(isinstance(x, keras.KerasTensor) for x in (value, key, value_mask)):
            raise ValueError("`precompute` takes no symbolic tensors: call the layer on `value`.")
        if value_mask is None:
            value_mask = getattr(value, "_keras_mask", None)
        value, key = self._value_and_key(value, key)
        self._check_inputs(None, value, key)
        keys, values, mask = self._memory_steps(
            value, key, masks.as_mask(value_mask, "value_mask"), None
        )
        key_positions = as_positions("key_positions", key_positions, *keys.shape[:2])
        if key_positions is None and self._uses_places:
            key_positions = counted(0, ops.shape(keys)[-2]).keys
        pairs = None if mask is None else mask[..., None, :]
        keys, values = self._project(keys, values, pairs, key_positions)
        return (keys, values) if mask is None else (keys, values, mask)

    def initial_alignment(self, memory):
        """The alignment before the first step, for calls step by step with `alignment=`.

        Args:
            memory: what `precompute` returned.

        Returns:
            A dictionary of tensors, empty where no step depends on those before it: "position"
            `[B]`, "previous" `[B, S]` (the weights of the last step), "coverage" `[B, S]` (the
            sum of the weights so far), as far as the layer carries them.
        """
        carries = self._carries()
        if not carries:
            return {}
        _, values, mask = self._mask_memory(memory, None, None)
        start = getattr(self.normalizer, "start", None)
        previous = start(values[..., 0], mask) if start and "previous" in carries else None
        return alignments.start(carries, values, previous)

    def alignment_spec(self, batch_size, keys):
        """The shapes and dtypes of `initial_alignment`, as symbolic tensors `[B]`, `[B, S]`."""
        return alignments.start_spec(self._carries(), batch_size, keys, self.compute_dtype)

    def _project(self, keys, values, mask, positions):
        """Projected keys and values; what the mask hides from all queries is zeroed before."""
        same = keys is values
        if mask is not None:
            values = hide(values, mask, -2)
            keys = values if same else hide(keys, mask, -2)
        return self._place(self._project_key(keys), positions), self._project_value(values)

    def _append(self, cache, steps, mask, positions):
        """Takes the steps `[B, T, D]` into a cache; only layers with `start_cache` have one.

        Args:
            cache: the cache.
            steps: the steps, as they came.
            mask: `[B, T]`, the real steps, or None.
            positions: `[T]` or `[B, T]`, or None to go on from those in the cache.

        Returns:
            Keys, values, their mask `[B, S]`, the `Places` of steps and keys, and the new cache.
        """
        raise ValueError(f"{type(self).__name__} keeps no `cache`: MultiHeadAttention does.")

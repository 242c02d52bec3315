"""What a layer keeps of the keys and values: a projected memory, an alignment, a cache."""

from typing import Any, NamedTuple

import keras
from keras import ops

from keras_attention import checks, masks
from keras_attention.attend import hide
from keras_attention.layers import alignment as alignments
from keras_attention.layers.places import Places, counted, fit_positions


class Source(NamedTuple):
    """The keys and values of a call.

    Attributes:
        keys, values: `[B, ..., S, D]`, as they came, or projected.
        mask: `[B, ..., S]`, the real ones, or None.
        places: `Places` of queries and keys, or None where nothing goes by them.
        projected: whether they are projected; then 0 where the mask hid them before.
        cache: the new cache that they are in, or None.
        visible: `[B, T, S]`, which of them a query may see, as beams see their own past; or None.
    """

    keys: Any
    values: Any
    mask: Any
    places: Any
    projected: bool
    cache: Any = None
    visible: Any = None


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
        key_positions = fit_positions("key_positions", key_positions, keys)
        if key_positions is None and self._uses_places:
            key_positions = counted(0, ops.shape(keys)[-2]).keys
        used = None if mask is None else mask[..., None]
        keys, values = self._project(keys, values, used, key_positions)
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

    def _project(self, keys, values, used, positions):
        """Projected keys and values; those that no query uses are zeroed before."""
        same, values = keys is values, hide(values, used)
        keys = values if same else hide(keys, used)
        return self._place(self._project_key(keys), positions), self._project_value(values)

    def _check_source(self, value, key, memory, cache, *of_keys):
        """Raises unless keys and values come from one place; `of_keys`: their masks, positions."""
        if cache is not None and any(x is not None for x in (value, key, memory, *of_keys)):
            raise ValueError(
                "A `cache` is for self-attention, and knows its keys: `query`, its mask and "
                "positions go with it, but no `value`, `key` or `memory`, and no masks or "
                "positions of keys."
            )
        if memory is not None and not (value is None and key is None):
            raise ValueError("Pass either `memory` or `value` (and `key`), not both.")

    def _source(self, value, key, value_mask, key_mask, memory, steps, positions, key_positions):
        """The `Source` of a call without a cache: `value` and `key`, or a memory."""
        if memory is None:
            keys, values, mask = self._memory_steps(value, key, value_mask, key_mask)
        else:
            keys, values, mask = self._mask_memory(memory, value_mask, key_mask)
            checks.check_sizes({"query": steps.shape[:1], "memory": values.shape[:1]})
        key_positions = fit_positions("key_positions", key_positions, keys)
        places = None
        if self._uses_places or not (positions is None and key_positions is None):
            if self._windowed:
                raise ValueError(f"{type(self).__name__} with a window takes no `positions`.")
            default = counted(ops.shape(steps)[-2], ops.shape(keys)[-2])
            places = Places(
                default.queries if positions is None else positions,
                default.keys if key_positions is None else key_positions,
                given=not (positions is None and key_positions is None),
            )
        return Source(keys, values, mask, places, projected=memory is not None)

    def _keys_and_values(self, source, queries, pairs, hidden_more):
        """Projected keys and values, 0 where no query may attend to them."""
        if not source.projected:
            key_places = source.places and source.places.keys
            pair = self._project(source.keys, source.values, pairs.keys(), key_places)
            return tuple(checks.fit_batch(x, queries) for x in pair)
        if not hidden_more:
            return source.keys, source.values
        used = self._group_heads(pairs.keys())
        return hide(source.keys, used), hide(source.values, used)

    def _alignment_before(self, alignment, prepared):
        """What the steps before have left, or the beginning."""
        if alignment is not None:
            return alignments.check(alignment, self._carries(), prepared.values)
        memory = (prepared.keys, prepared.values, prepared.memory_mask)
        return self.initial_alignment(memory[: 2 + (prepared.memory_mask is not None)])

    def _append(self, cache, steps, mask, positions):
        """Takes the steps `[B, T, D]` into a cache; only layers with `start_cache` have one.

        Args:
            cache: the cache.
            steps: the steps, as they came.
            mask: `[B, T]`, the real steps, or None.
            positions: `[T]` or `[B, T]`, or None to go on from those in the cache.

        Returns:
            The `Source` of the steps' attention: what is in the cache.
        """
        raise ValueError(f"{type(self).__name__} keeps no `cache`: MultiHeadAttention does.")

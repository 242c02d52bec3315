"""How an attention layer takes its inputs: ranks, sizes, steps and masks, checked."""

from keras import ops

from keras_attention import checks, masks
from keras_attention.attend import hide
from keras_attention.layers.places import fit_positions
from keras_attention.pairs import Pairs


class LayerInputs:
    """Brings what a layer is called with to steps `[B, ..., T, D]` and masks that fit.

    A layer with more axes than batch, steps and features overrides the methods for them.
    """

    _num_heads = None  # an integer where the scores have an axis of heads before `[T, S]`
    _features = None  # sizes of query, value and key that the weights fit

    # Steps: one step `[B, D]` is a sequence of length 1. Layers with more axes override these.

    def _to_steps(self, x):
        return x[:, None] if len(x.shape) == 2 else x

    def _from_steps(self, output, query):
        return ops.squeeze(output, 1) if len(query.shape) == 2 else output

    def _weights_from_steps(self, weights, query, value):
        return ops.squeeze(weights, -2) if len(query.shape) == 2 else weights

    def _heads_shape(self):
        """The axes of heads of the scores: `(N,)`, or `()`."""
        return () if self._num_heads is None else (self._num_heads,)

    def _group_heads(self, values):
        """Gives a mask or bias that fits the scores the axes of grouped heads."""
        return values

    def _align(self, name, values, query):
        """An attention mask or bias of the caller with the axes of the scores."""
        checks.check_scores_rank(name, values, query.shape, self._num_heads is not None)
        return ops.expand_dims(values, -2) if len(query.shape) == 2 else values

    def _check_ranks(self, query, value, key):
        """Raises unless the numbers of axes fit; each argument is a shape, or None."""
        for name, shape, ranks in (
            ("query", query, (2, 3)),
            ("value", value, (3,)),
            ("key", key, (3,)),
        ):
            if shape is not None and len(shape) not in ranks:
                wanted = "[B, T, D] or [B, D]" if name == "query" else "[B, S, D]"
                raise ValueError(f"`{name}` must have shape {wanted}. Received shape {shape}.")

    def _memory_mask_shape(self, shape):
        """Shape of the mask that goes with projected values of this shape."""
        return tuple(shape[:-1])

    def _value_and_key(self, value, key):
        value = checks.check_float(value, "value", self.compute_dtype)
        key = value if key is None else checks.check_float(key, "key", self.compute_dtype)
        return value, key

    def _check_inputs(self, query, value, key):
        """Raises unless ranks, features and batch sizes fit; None for what is not given."""
        inputs = {"query": query, "value": value, "key": key}
        shapes = {name: None if x is None else tuple(x.shape) for name, x in inputs.items()}
        self._check_ranks(*shapes.values())
        checks.check_sizes(shapes, self._features)

    def _query_steps(self, query, mask):
        """The query as steps, its mask checked, and the mask of the steps."""
        mask = checks.fit_mask("query_mask", mask, query.shape[:-1], ops.shape(query)[:-1])
        return self._to_steps(query), mask, self._mask_to_steps(mask)

    def _query_positions(self, positions, query, steps):
        """Positions of the query `[T]` or `[B, T]`, for one step `[B]`, as those of steps."""
        if positions is not None and len(query.shape) == 2:
            positions = ops.expand_dims(positions, -1)
        return fit_positions("positions", positions, steps)

    def _memory_steps(self, value, key, value_mask, key_mask):
        """Keys, values and their mask `[B, ..., S]` (or None), not projected yet."""
        expected, sizes = value.shape[:-1], ops.shape(value)[:-1]
        mask = masks.combine_masks(
            checks.fit_mask("value_mask", value_mask, expected, sizes),
            checks.fit_mask("key_mask", key_mask, expected, sizes),
        )
        values = self._to_steps(value)
        keys = values if key is value else self._to_steps(key)
        return keys, values, self._mask_to_steps(mask)

    def _mask_memory(self, memory, value_mask, key_mask):
        """A precomputed memory with further masks anded to its own."""
        if not isinstance(memory, (tuple, list)) or len(memory) not in (2, 3):
            raise ValueError(
                "`memory` must be what `precompute` returned: a tuple of projected keys, projected "
                f"values and, with padding, a mask. Received: {type(memory).__name__}."
            )
        keys, values, *stored = memory
        expected = self._memory_mask_shape(values.shape)
        sizes = self._memory_mask_shape(ops.shape(values))
        mask = masks.combine_masks(
            checks.fit_mask("value_mask", value_mask, expected, sizes),
            checks.fit_mask("key_mask", key_mask, expected, sizes),
            *stored,
        )
        return keys, values, mask

    def _mask_to_steps(self, mask):
        return None if mask is None else self._to_steps(mask[..., None])[..., 0]

    def _to_scores(self, attention_mask, attention_bias, query, steps, keys):
        """The caller's mask and bias, checked and with the axes of the scores."""
        if attention_bias is not None:
            attention_bias = checks.check_bias(ops.convert_to_tensor(attention_bias))
        shape = (*steps.shape[:-2], *self._heads_shape(), steps.shape[-2], keys.shape[-2])
        aligned = []
        for name, values in (
            ("attention_mask", masks.as_mask(attention_mask, "attention_mask")),
            ("attention_bias", attention_bias),
        ):
            if values is not None:
                values = self._align(name, values, query)
                values = checks.fit_to_scores(name, values, shape, ops.shape(keys)[-2])
                values = masks.align_to_rank(values, len(shape), name)
            aligned.append(values)
        return aligned

    def _with_pair_mask(self, attention_mask, steps, places):
        own = self._pair_mask(ops.shape(steps)[0], places, len(steps.shape) + 1)
        return masks.combine_masks(attention_mask, own)

    def _pairs(self, steps, row_mask, source, attention_mask, bias, use_causal_mask):
        """The `Pairs` of a call: its masks, and the caller's bias."""
        rows = None if row_mask is None or self._windowed else row_mask[..., :, None]
        columns = None if source.mask is None else source.mask[..., None, :]
        if self._num_heads is not None:
            rows, columns = (x if x is None else ops.expand_dims(x, -3) for x in (rows, columns))
        causal, window = use_causal_mask and not self._windowed, self._sliding_window
        mask = masks.combine_masks(attention_mask, masks.bias_mask(bias))
        if source.visible is not None:
            rank = len(steps.shape) + len(self._heads_shape())
            mask = masks.combine_masks(mask, masks.align_to_rank(source.visible, rank))
        if source.places is not None and source.places.given:
            mask = masks.combine_masks(mask, *source.places.masks(causal, window))
            if mask is not None:
                mask = masks.align_to_rank(mask, len(steps.shape) + len(self._heads_shape()))
            causal, window = False, None
        sizes = ops.shape(steps)[-2], ops.shape(source.keys)[-2]
        return Pairs(rows, columns, mask, bias, None, causal, window, sizes)

    def _hide_steps(self, steps, row_mask, source, attending):
        """Queries, 0 where they may attend to nothing."""
        hidden = hide(steps, attending)
        if self._windowed and row_mask is not None:
            hidden = hide(hidden, row_mask[..., None])
        return hidden if source.projected else checks.fit_like(hidden, steps)

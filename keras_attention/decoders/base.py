"""What the recurrent decoders share: arguments, masks, state, saving."""

import keras
from keras import ops

from keras_attention import checks, masks
from keras_attention.decoders import cell as cells
from keras_attention.layers.outputs import VaryingOutputs


class RecurrentDecoder(VaryingOutputs, keras.layers.Layer):
    """Base of the decoders: arguments, masks, state, saving. A subclass adds the equations.

    Args:
        cell: a Keras cell, or a list of cells (a stack).
        attention: an attention layer of this package.
        **kwargs: arguments of `keras.layers.Layer` (name, dtype, ...).

    Call arguments:
        inputs: `[B, T, D]`, the embedded tokens (teacher forcing), T at least 1.
        memory: `[B, S, Dm]`, the encoder's outputs.
        initial_state: the cell's state before the first step, e.g. the encoder's last; a tensor
            `[B, size]` or a list of them, as `get_initial_state` gives. By default the cell's own.
        memory_mask: `[B, S]`, True = may be attended; by default the Keras mask of `memory`.
        mask: `[B, T]`, True = a real step; by default the Keras mask of `inputs`. A masked step
            keeps the state, and has output 0 and weights 0.
        return_attention_scores: whether to return the attention weights (the alignment).
        return_state: whether to return the state after the last step.
        inputs_mask: where Keras hands the mask of `inputs`; use `mask`.

    Returns:
        The outputs `[B, T, U]`, or a tuple of them, the weights `[B, T, S]` and the state (a
        list), the latter two if asked for.

    Raises:
        ValueError: if `cell` is no cell, `attention` no layer, or shapes do not fit.

    Example: see `BahdanauDecoder`.
    """

    def __init__(self, cell, attention, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True
        if isinstance(attention, type) or not hasattr(attention, "precompute"):
            raise ValueError(
                "`attention` must be an attention layer of keras_attention, e.g. "
                f"BahdanauAttention(units). Received: {attention!r}."
            )
        self.cell = cells.as_cell(cell)
        self.attention = attention

    _features = None  # sizes of inputs and memory that the weights fit

    # What a subclass says.

    def _cell_input_size(self, inputs_size, context_size):
        """Number of features that the cell is fed with."""

    def _step(self, inputs, state, memory):
        """One step: output `[B, U]`, weights `[B, S]` and the new state."""

    def _decode(self, inputs, state, memory, mask, training):
        """Outputs `[B, T, U]`, weights `[B, T, S]` and the state after the last step."""

    def _output_size(self):
        return cells.output_size(self.cell)

    # What they share.

    def build(self, inputs_shape, memory_shape):
        shapes = {"inputs": tuple(inputs_shape), "memory": tuple(memory_shape)}
        checks.check_sequences(shapes)
        query_shape = (None, cells.query_size(self.cell))
        if not self.attention.built:
            self.attention.build(query_shape, memory_shape)
        context_size = self.attention.compute_output_shape(query_shape, memory_shape)[-1]
        self._context_size = context_size
        if not self.cell.built:
            size = self._cell_input_size(inputs_shape[-1], context_size)
            self.cell.build((None, size))
        self._features = {name: shape[-1] for name, shape in shapes.items()}
        self.built = True

    def call(
        self,
        inputs,
        memory,
        initial_state=None,
        memory_mask=None,
        mask=None,
        return_attention_scores=False,
        return_state=False,
        inputs_mask=None,
        training=None,
    ):
        inputs = checks.check_float(inputs, "inputs", self.compute_dtype)
        self._check_inputs(inputs=inputs, memory=memory)
        mask = masks.as_mask(inputs_mask if mask is None else mask, "mask")
        mask = checks.fit_mask("mask", mask, inputs.shape[:2], ops.shape(inputs)[:2])
        if mask is not None:  # NaN in padding must not reach the gradients
            inputs = ops.where(mask[..., None], inputs, ops.zeros((), inputs.dtype))
        state = self.get_initial_state(ops.shape(inputs)[0])
        if initial_state is not None:
            state = cells.pack_state(state, initial_state)
        memory = self.precompute(checks.fit_batch(memory, inputs), memory_mask)
        outputs, weights, state = self._decode(inputs, state, memory, mask, training)
        results = [outputs]
        if return_attention_scores:
            results.append(weights)
        if return_state:
            results.append(state)
        return outputs if len(results) == 1 else tuple(results)

    def precompute(self, memory, memory_mask=None):
        """Projects the memory once, for `step`.

        Args:
            memory: `[B, S, Dm]`.
            memory_mask: `[B, S]`, True = may be attended; by default the Keras mask of `memory`.

        Returns:
            A tuple of tensors, as `attention.precompute` gives.
        """
        if memory_mask is None:
            memory_mask = getattr(memory, "_keras_mask", None)
        memory = checks.check_float(memory, "memory", self.compute_dtype)
        self._check_inputs(memory=memory)
        if memory_mask is not None:
            memory_mask = checks.fit_mask(
                "memory_mask",
                masks.as_mask(memory_mask, "memory_mask"),
                memory.shape[:2],
                ops.shape(memory)[:2],
            )
        return self.attention.precompute(memory, value_mask=memory_mask)

    def step(self, inputs, state, memory, return_attention_scores=False):
        """One step of inference; the same numbers as the call gives for a whole sequence.

        Args:
            inputs: `[B, D]`, the embedded token.
            state: as `get_initial_state` or the last step gave it.
            memory: what `precompute` returned (or, projected anew each time, `[B, S, Dm]`).
            return_attention_scores: whether to return the weights `[B, S]`.

        Returns:
            `(output, state)`, or `(output, weights, state)`; output `[B, U]`.
        """
        if not isinstance(memory, (tuple, list)):
            memory = self.precompute(memory)
        inputs = checks.check_float(inputs, "inputs", self.compute_dtype)
        self._check_inputs(inputs=inputs[:, None] if len(inputs.shape) == 2 else inputs[None])
        state = cells.pack_state(self.get_initial_state(ops.shape(inputs)[0]), state, "state")
        output, weights, state = self._step(inputs, state, memory)
        return (output, weights, state) if return_attention_scores else (output, state)

    def _check_inputs(self, **inputs):
        """Raises unless `inputs` and `memory` are sequences that the layer was built for."""
        if not self.built:
            raise ValueError(
                f"{type(self).__name__} must be built first: call it once, or call its "
                "`build(inputs_shape, memory_shape)`."
            )
        shapes = {name: tuple(x.shape) for name, x in inputs.items()}
        checks.check_sequences(shapes)
        checks.check_sizes(shapes, self._features)
        if shapes.get("inputs", (None, None))[1] == 0:
            raise ValueError(
                f"`inputs` must have at least one step. Received shape {shapes['inputs']}."
            )

    def get_initial_state(self, batch_size):
        """The state before the first step: a list of tensors `[B, size]` (of lists, in stacks)."""
        return cells.initial_state(self.cell, batch_size, self.compute_dtype)

    def compute_output_shape(self, inputs_shape, memory_shape):
        return (*inputs_shape[:2], self._output_size())

    def compute_output_spec(
        self,
        inputs,
        memory,
        initial_state=None,
        memory_mask=None,
        mask=None,
        return_attention_scores=False,
        return_state=False,
        inputs_mask=None,
        training=None,
    ):
        self._check_inputs(inputs=inputs, memory=memory)
        batch, steps = inputs.shape[:2]
        specs = [(batch, steps, self._output_size())]
        if return_attention_scores:
            specs.append((batch, steps, memory.shape[1]))
        results = [keras.KerasTensor(shape, dtype=self.compute_dtype) for shape in specs]
        if return_state:
            results.append(
                keras.tree.map_structure(
                    lambda x: keras.KerasTensor((batch, *x.shape[1:]), dtype=self.compute_dtype),
                    self.get_initial_state(1),
                )
            )
        return results[0] if len(results) == 1 else tuple(results)

    def get_config(self):
        serialize = keras.saving.serialize_keras_object
        own = {"cell": serialize(self.cell), "attention": serialize(self.attention)}
        return {**super().get_config(), **own}

    @classmethod
    def from_config(cls, config, custom_objects=None):
        config = dict(config)
        for name in ("cell", "attention"):
            config[name] = keras.saving.deserialize_keras_object(
                config[name], custom_objects=custom_objects
            )
        return cls(**config)


def mean_over_heads(weights, query_rank):
    """Alignment `[B, (T,) S]`: of a layer with heads, the mean of their weights."""
    return ops.mean(weights, axis=1) if len(weights.shape) > query_rank else weights

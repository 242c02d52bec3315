"""What the recurrent decoders share: arguments, masks, state, saving."""

import copy

import keras
from keras import ops

from keras_attention import checks, masks
from keras_attention.decoders import cell as cells
from keras_attention.decoders import state as states
from keras_attention.decoders.loop import changed_by, run_cell_on, run_steps
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
            A state that an earlier call returned goes on from there.
        memory_mask: `[B, S]`, True = may be attended; by default the Keras mask of `memory`.
        mask: `[B, T]`, True = a real step; by default the Keras mask of `inputs`. A masked step
            keeps the state, and has output 0 and weights 0.
        return_attention_scores: whether to return the attention weights (the alignment).
        return_state: whether to return the state after the last step: the cell's (a list), or,
            where the decoder carries more from step to step, a dictionary with "cell",
            "alignment" (see `initial_alignment` of the attention layers) and "attended" (what
            is fed into the next step).
        feedback: function from a step's output `[B, U]` to an input `[B, D]` of the next, for
            scheduled sampling; see `ScheduledSampling`.
        feedback_mask: `[B, T]`, True where a step reads what `feedback` made of the last output
            instead of its input; the first real step reads its input in any case.
        inputs_mask: where Keras hands the mask of `inputs`; use `mask`.

    Returns:
        The outputs `[B, T, U]`, or a tuple of them, the weights `[B, T, S]` and the state, the
        latter two if asked for.

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

    def _step(self, inputs, state, memory, wanted, run_cell):
        """One step: output `[B, U]`, weights `[B, S]` (None if not wanted) and the new state.

        `run_cell(inputs, extra, state)` runs the cell on `[inputs; extra]`.
        """

    def _output_size(self):
        return cells.output_size(self.cell)

    def _fed_size(self):
        """Size of what a step hands to the next besides states, `[B, size]`; None for nothing."""

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
        feedback=None,
        feedback_mask=None,
        inputs_mask=None,
        training=None,
    ):
        inputs = checks.check_float(inputs, "inputs", self.compute_dtype)
        self._check_inputs(inputs=inputs, memory=memory)
        mask = masks.as_mask(inputs_mask if mask is None else mask, "mask")
        mask = checks.fit_mask("mask", mask, inputs.shape[:2], ops.shape(inputs)[:2])
        if mask is not None:  # NaN in padding must not reach the gradients
            inputs = ops.where(mask[..., None], inputs, ops.zeros((), inputs.dtype))
        memory = self.precompute(checks.fit_batch(memory, inputs), memory_mask)
        state = self.start_state(memory, initial_state)
        if feedback is not None or feedback_mask is not None:
            feedback = feedback, self._check_feedback(feedback, feedback_mask, mask, inputs)
        outputs, weights, state = self._decode(
            inputs, state, memory, mask, return_attention_scores, feedback, training
        )
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
            state: as `start_state` or the last step gave it.
            memory: what `precompute` returned (or, projected anew each time, `[B, S, Dm]`).
            return_attention_scores: whether to return the weights `[B, S]`.

        Returns:
            `(output, state)`, or `(output, weights, state)`; output `[B, U]`.
        """
        if not isinstance(memory, (tuple, list)):
            memory = self.precompute(memory)
        inputs = checks.check_float(inputs, "inputs", self.compute_dtype)
        self._check_inputs(inputs=inputs[:, None] if len(inputs.shape) == 2 else inputs[None])
        checks.check_sizes({"inputs": tuple(inputs.shape), "memory": tuple(memory[1].shape)})
        inputs = ops.copy(inputs)  # without a Keras mask: cells warn that they do not pass it on
        state = states.pack(self.start_state(memory), state, "state")
        output, weights, state = self._step(
            inputs, state, memory, return_attention_scores, run_cell_on(self.cell)
        )
        return (output, weights, state) if return_attention_scores else (output, state)

    def start_state(self, memory, initial_state=None, max_length=None):
        """The state before the first step, for `step`.

        Args:
            memory: what `precompute` returned.
            initial_state: as in the call; by default the cell's own.
            max_length: the most steps that follow; the size of this state does not depend on it.

        Returns:
            The cell's state, a list of tensors `[B, size]` (of lists, in stacks). Where the
            decoder carries more, a dictionary with "cell", "alignment" and "attended" `[B, U]`.
        """
        batch_size = ops.shape(memory[1])[0]
        attended = None
        if self._fed_size():
            attended = ops.zeros((batch_size, self._fed_size()), self.compute_dtype)
        state = states.join(
            self.get_initial_state(batch_size),
            self.attention.initial_alignment(memory),
            attended,
        )
        return (
            state if initial_state is None else states.pack(state, initial_state, "initial_state")
        )

    def _attend(self, query, memory, alignment, wanted, query_mask=None):
        """Context `[B, (T,) Dv]`, weights `[B, (T,) S]` or None, and the alignment."""
        context, *weights, alignment = self.attention(
            query,
            memory=memory,
            alignment=alignment,
            query_mask=query_mask,
            return_attention_scores=wanted,
        )
        weights = (
            ops.cast(mean_over_heads(weights[0], len(query.shape)), query.dtype) if wanted else None
        )
        return ops.cast(context, query.dtype), weights, alignment

    def _decode(self, inputs, state, memory, mask, wanted, feedback, training):
        """Runs `_step` over the inputs `[B, T, D]`.

        Args: as of `call`; `wanted` is `return_attention_scores`, `feedback` None or the pair
            `(feedback, feedback_mask)`.

        Returns:
            Outputs `[B, T, U]`, weights `[B, T, S]` or None, and the state after the last step.
        """

        def step(x, carry, run_cell, *taken):
            if taken:
                x = cells.keep_where(taken[0], carry["fed"], x)
            output, weights, state = self._step(x, carry["state"], memory, wanted, run_cell)
            carry = {"state": state}
            if taken:
                carry["fed"] = ops.cast(feedback[0](output), x.dtype)
            return [output, weights] if wanted else [output], carry

        sizes = [self._output_size()] + ([memory[0].shape[-2]] if wanted else [])
        carry = {"state": state}
        if feedback is not None:
            carry["fed"] = ops.zeros_like(inputs[:, 0])
        outputs, carry = self._run_steps(
            step, inputs, carry, state, mask, sizes, training, feedback
        )
        return (*outputs, None)[:2] + (carry["state"],)

    def _run_steps(self, step, inputs, carry, state, mask, sizes, training, feedback=None):
        size = inputs.shape[-1]
        extra_size = self._cell_input_size(size, self._context_size) - size
        cell_state = states.split(state)[0]
        function, *more = feedback or [None]
        sizes, changed = (extra_size, mask, sizes), changed_by(self, function)
        return run_steps(
            self.cell, step, inputs, carry, cell_state, *sizes, training, changed, more
        )

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

    def _check_feedback(self, feedback, feedback_mask, mask, inputs):
        """The steps `[B, T]` that read the output of the step before; it must be a real one."""
        if not callable(feedback) or feedback_mask is None:
            raise ValueError(
                "`feedback`, a function from an output [B, U] to an input [B, D], and "
                f"`feedback_mask` [B, T] go together. Received: {feedback!r} and {feedback_mask!r}."
            )
        expected, sizes = inputs.shape[:2], ops.shape(inputs)[:2]
        fed = checks.fit_mask(
            "feedback_mask", masks.as_mask(feedback_mask, "feedback_mask"), expected, sizes
        )
        real = ops.ones_like(fed) if mask is None else mask
        return ops.logical_and(fed, ops.cumsum(ops.cast(real, "int32"), axis=1) > 1)

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
        feedback=None,
        feedback_mask=None,
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
            results.append(self._state_spec(batch, memory.shape[1]))
        return results[0] if len(results) == 1 else tuple(results)

    def _state_spec(self, batch, keys):
        """What `return_state` returns, as symbolic tensors."""
        dtype = self.compute_dtype
        cell_state = keras.tree.map_structure(
            lambda x: keras.KerasTensor((batch, *x.shape[1:]), dtype=dtype),
            self.get_initial_state(1),
        )
        attended = None
        if self._fed_size():
            attended = keras.KerasTensor((batch, self._fed_size()), dtype=dtype)
        return states.join(cell_state, self.attention.alignment_spec(batch, keys), attended)

    def get_config(self):
        serialize = keras.saving.serialize_keras_object
        own = {"cell": serialize(self.cell), "attention": serialize(self.attention)}
        return {**super().get_config(), **own}

    @classmethod
    def from_config(cls, config, custom_objects=None):
        config = copy.deepcopy(config)  # (Keras takes the cells out of the config of a stack.)
        for name in ("cell", "attention"):
            config[name] = keras.saving.deserialize_keras_object(
                config[name], custom_objects=custom_objects
            )
        return cls(**config)


def mean_over_heads(weights, query_rank):
    """Alignment `[B, (T,) S]`: of a layer with heads, the mean of their weights."""
    return ops.mean(weights, axis=1) if len(weights.shape) > query_rank else weights

"""Luong's decoder: the recurrent cell, then attend."""

import keras
from keras import ops

from keras_attention.checks import check_flag, check_positive
from keras_attention.decoders import cell as cells
from keras_attention.decoders import state as states
from keras_attention.decoders.base import RecurrentDecoder


@keras.saving.register_keras_serializable(package="keras_attention")
class LuongDecoder(RecurrentDecoder):
    """Decoder that attends after the cell, [Luong et al., 2015](https://arxiv.org/abs/1508.04025).

        s_t = cell(x_t, s_{t-1})
        c_t = attention(query = s_t, memory)
        output_t = tanh(W_c [c_t; s_t] + b_c)

    Equation 5 of the paper. Without input feeding the cell runs over the whole sequence first,
    and all steps attend at once, in no loop. With it (section 3.3 of the paper) the cell knows
    what was attended to before:

        s_t = cell([x_t; output_{t-1}], s_{t-1}),  output_0 = 0

    Args:
        cell: a Keras cell (GRUCell, LSTMCell, ...), or a list of cells.
        attention: an attention layer of this package; in the paper `LuongAttention`.
        units: U, the size of the output; by default that of the cell's output.
        use_bias: whether to add b_c (the paper has none).
        activation: what takes the place of tanh; None for a linear map.
        input_feeding: whether the output of a step goes into the next.
        **kwargs: arguments of `keras.layers.Layer` (name, dtype, ...).

    Call arguments:
        inputs: `[B, T, D]`, embedded tokens. memory: `[B, S, Dm]`, the encoder's outputs.
        initial_state, memory_mask, mask, return_attention_scores, return_state: see the base
        class, `RecurrentDecoder`.

    Returns:
        The outputs `[B, T, U]`, or `(outputs[, weights [B, T, S]][, state])`.

    Masking:
        `memory_mask` and `mask` are by default the Keras masks of `memory` and `inputs`. A masked
        step keeps the state, and has output 0 and weights 0. The output carries the mask.

    Raises:
        ValueError: if `cell` is no cell, `attention` is no attention layer, `units` is not a
            positive integer, or shapes do not fit.

    Example:

    >>> import numpy as np
    >>> from keras_attention import LuongAttention
    >>> decoder = LuongDecoder(keras.layers.LSTMCell(7), LuongAttention("general"), units=6)
    >>> inputs, memory = np.ones((2, 4, 5)), np.ones((2, 3, 8))
    >>> outputs, weights = decoder(inputs, memory, return_attention_scores=True)
    >>> outputs.shape, weights.shape
    (TensorShape([2, 4, 6]), TensorShape([2, 4, 3]))
    """

    def __init__(
        self,
        cell,
        attention,
        units=None,
        use_bias=True,
        activation="tanh",
        input_feeding=False,
        **kwargs,
    ):
        super().__init__(cell, attention, **kwargs)
        self.units = None if units is None else check_positive("units", units)
        self.use_bias = use_bias
        self.activation = keras.activations.get(activation)
        self.input_feeding = check_flag("input_feeding", input_feeding)

    def build(self, inputs_shape, memory_shape):
        super().build(inputs_shape, memory_shape)
        self.combine = keras.layers.Dense(
            self._output_size(),
            activation=self.activation,
            use_bias=self.use_bias,
            name="combine",
            dtype=self.dtype_policy,
        )
        self.combine.build((None, self._context_size + cells.output_size(self.cell)))

    def _cell_input_size(self, inputs_size, context_size):
        return inputs_size + (self._output_size() if self.input_feeding else 0)

    def _output_size(self):
        return self.units or cells.output_size(self.cell)

    def _fed_size(self):
        return self._output_size() if self.input_feeding else None

    def _combine(self, context, hidden):
        return self.combine(ops.concatenate([context, hidden], axis=-1))

    def _step(self, inputs, state, memory, wanted, run_cell):
        cell_state, alignment, attended = states.split(state)
        output, cell_state = run_cell(inputs, attended, cell_state)
        context, weights, alignment = self._attend(output, memory, alignment, wanted)
        output = self._combine(context, output)
        attended = output if self.input_feeding else None
        return output, weights, states.join(cell_state, alignment, attended)

    def _decode(self, inputs, state, memory, mask, wanted, feedback, training):
        if self.input_feeding or feedback is not None:
            return super()._decode(inputs, state, memory, mask, wanted, feedback, training)
        # No step reads what another attended to: the cell runs first, then all steps attend.
        cell_state, alignment, _ = states.split(state)

        def step(x, carry, run_cell):
            output, carry = run_cell(x, None, carry)
            return [output], carry

        sizes = [cells.output_size(self.cell)]
        (hidden,), cell_state = self._run_steps(
            step, inputs, cell_state, cell_state, mask, sizes, training
        )
        context, weights, alignment = self._attend(hidden, memory, alignment, wanted, mask)
        outputs = self._combine(context, hidden)
        if mask is not None:
            outputs = ops.where(mask[..., None], outputs, ops.zeros((), outputs.dtype))
        return outputs, weights, states.join(cell_state, alignment)

    def get_config(self):
        own = {
            "units": self.units,
            "use_bias": self.use_bias,
            "activation": keras.activations.serialize(self.activation),
            "input_feeding": self.input_feeding,
        }
        return {**super().get_config(), **own}

"""Luong's decoder: the recurrent cell, then attend."""

import keras
from keras import ops

from keras_attention.checks import check_positive
from keras_attention.decoders import cell as cells
from keras_attention.decoders.base import RecurrentDecoder, mean_over_heads
from keras_attention.loops import scan_steps


@keras.saving.register_keras_serializable(package="keras_attention")
class LuongDecoder(RecurrentDecoder):
    """Decoder that attends after the cell, [Luong et al., 2015](https://arxiv.org/abs/1508.04025).

        s_t = cell(x_t, s_{t-1})
        c_t = attention(query = s_t, memory)
        output_t = tanh(W_c [c_t; s_t] + b_c)

    Equation 5 of the paper, without its input feeding: so the cell runs over the whole sequence
    first, and all steps attend at once, in no loop.

    Args:
        cell: a Keras cell (GRUCell, LSTMCell, ...), or a list of cells.
        attention: an attention layer of this package; in the paper `LuongAttention`.
        units: U, the size of the output; by default that of the cell's output.
        use_bias: whether to add b_c (the paper has none).
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

    def __init__(self, cell, attention, units=None, use_bias=True, **kwargs):
        super().__init__(cell, attention, **kwargs)
        self.units = None if units is None else check_positive("units", units)
        self.use_bias = use_bias

    def build(self, inputs_shape, memory_shape):
        super().build(inputs_shape, memory_shape)
        self.combine = keras.layers.Dense(
            self._output_size(),
            activation="tanh",
            use_bias=self.use_bias,
            name="combine",
            dtype=self.dtype_policy,
        )
        self.combine.build((None, self._context_size + cells.output_size(self.cell)))

    def _cell_input_size(self, inputs_size, context_size):
        return inputs_size

    def _output_size(self):
        return self.units or cells.output_size(self.cell)

    def _attend(self, states, memory, query_mask=None):
        context, weights = self.attention(
            states, memory=memory, query_mask=query_mask, return_attention_scores=True
        )
        context, weights = (ops.cast(x, states.dtype) for x in (context, weights))
        weights = mean_over_heads(weights, len(states.shape))
        return self.combine(ops.concatenate([context, states], axis=-1)), weights

    def _step(self, inputs, state, memory):
        output, state = cells.run_cell(self.cell, inputs, state)
        return *self._attend(output, memory), state

    def _decode(self, inputs, state, memory, mask, training):
        def step(inputs_t, state):
            x, real = inputs_t if mask is not None else (inputs_t, None)
            output, new_state = cells.run_cell(self.cell, x, state)
            return [output], cells.keep_where(real, new_state, state)

        shape = (None, cells.output_size(self.cell))
        with cells.drawn_dropout(self.cell, inputs[:, 0], state, training):
            (states,), state = scan_steps(
                step,
                inputs if mask is None else (inputs, mask),
                state,
                [(shape, self.compute_dtype)],
            )
        outputs, weights = self._attend(states, memory, mask)
        if mask is not None:
            outputs = ops.where(mask[..., None], outputs, ops.zeros((), outputs.dtype))
        return outputs, weights, state

    def get_config(self):
        return {**super().get_config(), "units": self.units, "use_bias": self.use_bias}

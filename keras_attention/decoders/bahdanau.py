"""Bahdanau's decoder: attend, then the recurrent cell."""

import keras
from keras import ops

from keras_attention.decoders import cell as cells
from keras_attention.decoders.base import RecurrentDecoder, mean_over_heads
from keras_attention.loops import scan_steps


@keras.saving.register_keras_serializable(package="keras_attention")
class BahdanauDecoder(RecurrentDecoder):
    """Decoder that attends before the cell, [Bahdanau et al., 2015](https://arxiv.org/abs/1409.0473).

        c_t = attention(query = s_{t-1}, memory)
        s_t = cell([x_t; c_t], s_{t-1})

    Section 3.1 and appendix A.2.2 of the paper; the output is the cell's output (s_t). The query
    of a stack of cells is the state of the topmost, that of an LSTM its h.

    Args:
        cell: a Keras cell (GRUCell, LSTMCell, ...), or a list of cells.
        attention: an attention layer of this package; in the paper `BahdanauAttention`.
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
        ValueError: if `cell` is no cell, `attention` is no attention layer, or shapes do not fit.

    Example:

    >>> import numpy as np
    >>> from keras_attention import BahdanauAttention
    >>> decoder = BahdanauDecoder(keras.layers.GRUCell(7), BahdanauAttention(6))
    >>> inputs, memory = np.ones((2, 4, 5)), np.ones((2, 3, 8))
    >>> outputs, weights = decoder(inputs, memory, return_attention_scores=True)
    >>> outputs.shape, weights.shape
    (TensorShape([2, 4, 7]), TensorShape([2, 4, 3]))
    """

    def _cell_input_size(self, inputs_size, context_size):
        return inputs_size + context_size

    def _step(self, inputs, state, memory):
        context, weights = self.attention(
            cells.query_of(self.cell, state), memory=memory, return_attention_scores=True
        )
        context, weights = (ops.cast(x, inputs.dtype) for x in (context, weights))
        weights = mean_over_heads(weights, 2)
        cell_input = ops.concatenate([inputs, context], axis=-1)
        output, state = cells.run_cell(self.cell, cell_input, state)
        return output, weights, state

    def _decode(self, inputs, state, memory, mask, training):
        def step(inputs_t, state):
            x, real = inputs_t if mask is not None else (inputs_t, None)
            output, weights, new_state = self._step(x, state, memory)
            output, weights = cells.keep_where(
                real, [output, weights], [ops.zeros_like(output), ops.zeros_like(weights)]
            )
            return [output, weights], cells.keep_where(real, new_state, state)

        batch_size, _, size = ops.shape(inputs)
        cell_input = ops.zeros((batch_size, size + self._context_size), inputs.dtype)
        shapes = ((None, self._output_size()), (inputs.shape[0], memory[0].shape[-2]))
        with cells.drawn_dropout(self.cell, cell_input, state, training):
            (outputs, weights), state = scan_steps(
                step,
                inputs if mask is None else (inputs, mask),
                state,
                [(shape, self.compute_dtype) for shape in shapes],
            )
        return outputs, weights, state

"""Bahdanau's decoder: attend, then the recurrent cell."""

import keras

from keras_attention.decoders import cell as cells
from keras_attention.decoders import state as states
from keras_attention.decoders.base import RecurrentDecoder


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

    def _step(self, inputs, state, memory, wanted, run_cell):
        cell_state, alignment, _ = states.split(state)
        query = cells.query_of(self.cell, cell_state)
        context, weights, alignment = self._attend(query, memory, alignment, wanted)
        extra = context if self._context_size else None
        output, cell_state = run_cell(inputs, extra, cell_state)
        return output, weights, states.join(cell_state, alignment)

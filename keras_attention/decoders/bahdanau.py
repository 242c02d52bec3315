"""Bahdanau's decoder: attend, then the recurrent cell."""

import keras

from keras_attention.checks import check_flag
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

    With `attend_first=False` the first step does not attend, c_1 = 0, as in the AttentionWrapper
    of TensorFlow Addons: step t attends behind the cell, and the next one reads it,

        s_t = cell([x_t; c_t], s_{t-1})
        c_{t+1} = attention(query = s_t, memory),  c_1 = 0

    and the weights of a step are those of what it hands on.

    Args:
        cell: a Keras cell (GRUCell, LSTMCell, ...), or a list of cells.
        attention: an attention layer of this package; in the paper `BahdanauAttention`.
        attend_first: whether the first step attends to the memory.
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

    def __init__(self, cell, attention, attend_first=True, **kwargs):
        super().__init__(cell, attention, **kwargs)
        self.attend_first = check_flag("attend_first", attend_first)

    def _cell_input_size(self, inputs_size, context_size):
        return inputs_size + context_size

    def _fed_size(self):
        return None if self.attend_first else self._context_size

    def _step(self, inputs, state, memory, wanted, run_cell):
        cell_state, alignment, context = states.split(state)
        if self.attend_first:
            query = cells.query_of(self.cell, cell_state)
            context, weights, alignment = self._attend(query, memory, alignment, wanted)
        extra = context if self._context_size else None
        output, cell_state = run_cell(inputs, extra, cell_state)
        if self.attend_first:
            return output, weights, states.join(cell_state, alignment)
        query = cells.query_of(self.cell, cell_state)
        context, weights, alignment = self._attend(query, memory, alignment, wanted)
        context = context if self._context_size else None
        return output, weights, states.join(cell_state, alignment, context)

    def get_config(self):
        return {**super().get_config(), "attend_first": self.attend_first}

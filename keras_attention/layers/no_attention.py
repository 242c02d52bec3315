"""Attention to nothing, the baseline."""

import keras
from keras import ops

from keras_attention.layers.base import AttentionLayer


@keras.saving.register_keras_serializable(package="keras_attention")
class NoAttention(AttentionLayer):
    """Attends to nothing: what attention is compared with.

        context = ()

    `BahdanauDecoder(cell, NoAttention())` is the decoder of
    [Sutskever, Vinyals and Le, 2014](https://arxiv.org/abs/1409.3215), section 2: all that it knows
    of the memory has to fit into its initial state, a vector of fixed size.

    Args:
        **kwargs: arguments of `keras.layers.Layer` (name, dtype, ...).

    Call arguments:
        As of the other layers, see `AttentionLayer`. query: `[B, T, Dq]` or `[B, Dq]`; value:
        `[B, S, Dv]`.

    Returns:
        A context without features, `[B, T, 0]`, or `(context, weights)` with weights `[B, T, S]`,
        all 0.

    Masking:
        The context carries the query's mask.

    Raises:
        ValueError: if shapes do not fit.

    Example:

    >>> import numpy as np
    >>> NoAttention()(np.ones((2, 3, 4)), np.ones((2, 5, 6))).shape
    TensorShape([2, 3, 0])
    """

    def _attend(self, prepared, alignment, training):
        queries, keys = prepared.queries, prepared.keys
        # Zeros made of the inputs, so that sizes unknown so far stay right.
        nothing = ops.zeros_like(queries[..., :0])
        if not prepared.return_attention_scores:
            return nothing, None, alignment
        rows, columns = ops.zeros_like(queries[..., :1]), ops.zeros_like(keys[..., 0])
        return nothing, rows + columns[..., None, :], alignment

    def _output_features(self, query_shape, value_shape):
        return (0,)

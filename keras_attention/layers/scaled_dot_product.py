"""Scaled dot-product attention, without weights of its own."""

import keras

from keras_attention.layers.base import AttentionLayer
from keras_attention.scores import DotProduct


@keras.saving.register_keras_serializable(package="keras_attention")
class ScaledDotProductAttention(AttentionLayer):
    """Attention of equation 1 of [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762).

        Attention(Q, K, V) = softmax(Q K^T / sqrt(d_k)) V

    d_k is the number of features of the key. The layer has no weights.

    Args:
        dropout: the fraction of attention weights dropped in training, in [0, 1).
        seed: integer seed of the dropout.
        **kwargs: arguments of `keras.layers.Layer` (name, dtype, ...).

    Call arguments:
        query: `[B, T, D]`, or `[B, D]` for one step.
        value: `[B, S, Dv]`; by default the query (self-attention).
        key: `[B, S, D]`; by default `value`.
        query_mask, value_mask, key_mask, attention_mask, attention_bias, memory,
        return_attention_scores, use_causal_mask: see the base class, `AttentionLayer`.

    Returns:
        The context `[B, T, Dv]`, or `(context, weights)` with weights `[B, T, S]`; for one step
        `[B, Dv]` and `[B, S]`.

    Masking:
        Boolean, True = may attend. A query that may attend to nothing gets weights 0 and
        context 0. The context carries the query's Keras mask.

    Raises:
        ValueError: if query and key differ in their number of features, a mask is floating or
            of a wrong shape, or `dropout` lies outside [0, 1).

    Example:

    >>> import numpy as np
    >>> layer = ScaledDotProductAttention()
    >>> query, memory = np.ones((2, 3, 4)), np.ones((2, 5, 4))
    >>> context, weights = layer(query, memory, return_attention_scores=True)
    >>> context.shape, weights.shape
    (TensorShape([2, 3, 4]), TensorShape([2, 3, 5]))
    """

    def _product(self, queries):
        return DotProduct(float(queries.shape[-1]) ** -0.5)

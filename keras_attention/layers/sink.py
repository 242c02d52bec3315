"""Softmax with a sink: attention that may go nowhere."""

import keras
from keras import ops

from keras_attention.normalizers import masked_softmax, upcast


@keras.saving.register_keras_serializable(package="keras_attention")
class SinkSoftmax(keras.layers.Layer):
    """Softmax whose sum has one more term, a learned number of each head.

        weights[..., s] = exp(scores[..., s]) / (exp(b_n) + sum over s' of exp(scores[..., s']))

    As in [OpenAI, 2025](https://arxiv.org/abs/2508.10925), section 2.2: a head need not attend to
    anything. The rest of the weight, what the row lacks to 1, goes to the sink.

    Args:
        initializer: of the numbers b_n.
        **kwargs: arguments of `keras.layers.Layer`.

    Call arguments:
        scores: `[B, N, T, S]`.
        mask: boolean, broadcastable to the scores, True = may attend.

    Returns:
        Attention weights `[B, N, T, S]`, in float32 or float64.

    Masking:
        As of `masked_softmax`: masked entries get 0. A row with no other has all its weight in the
        sink.

    Raises:
        ValueError: if the scores have no axis of heads, or another number of heads.

    Example: a sink of 0 is like one more key with score 0

    >>> import numpy as np
    >>> from keras_attention.layers.multi_head import MultiHeadAttention
    >>> layer = MultiHeadAttention(2, 4, normalizer=SinkSoftmax())
    >>> _, weights = layer(np.zeros((1, 3, 4)), return_attention_scores=True)
    >>> weights[0, 0, 0].numpy()
    array([0.25, 0.25, 0.25], dtype=float32)
    """

    def __init__(self, initializer="zeros", **kwargs):
        super().__init__(autocast=False, **kwargs)
        self.supports_masking = True  # of the Keras masks of scores; weights carry none
        self.initializer = keras.initializers.get(initializer)

    def build(self, scores_shape):
        if len(scores_shape) < 3 or scores_shape[-3] is None:
            raise ValueError(
                "SinkSoftmax needs scores with heads [B, N, T, S], as of MultiHeadAttention. "
                f"Received shape {scores_shape}."
            )
        self.sinks = self.add_weight(
            shape=(scores_shape[-3],), initializer=self.initializer, name="sinks"
        )
        self.built = True

    def __call__(self, scores, mask=None):
        # By name: Keras would put a mask of its own in the place of None, and so give two.
        return super().__call__(scores, mask=mask)

    def call(self, scores, mask=None):
        scores = upcast(scores)
        heads, given = self.sinks.shape[0], scores.shape[-3]
        if heads not in (given, given * (scores.shape[-4] or 1)):
            raise ValueError(
                f"This SinkSoftmax was built for {heads} heads. Received scores of shape "
                f"{tuple(scores.shape)}: each layer needs one of its own."
            )
        grouped = scores.shape[-3] != heads  # `[B, N / G, G, T, S]`
        shape = (heads // scores.shape[-3], scores.shape[-3], 1, 1) if grouped else (heads, 1, 1)
        sinks = ops.reshape(ops.cast(self.sinks, scores.dtype), shape)
        column = ops.zeros_like(ops.sum(scores, axis=-1, keepdims=True)) + sinks
        if mask is not None:
            allowed = ops.logical_and(mask, ops.ones_like(scores[..., :1, :], "bool"))
            sink = ops.ones_like(ops.any(allowed, axis=-1, keepdims=True))
            mask = ops.concatenate([allowed, sink], axis=-1)
        return masked_softmax(ops.concatenate([scores, column], axis=-1), mask)[..., :-1]

    def compute_mask(self, scores, previous_mask=None):
        return None

    def get_config(self):
        return {
            **super().get_config(),
            "initializer": keras.initializers.serialize(self.initializer),
        }

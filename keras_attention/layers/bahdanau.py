"""Additive attention with learned projections of query, key and, optionally, the past."""

import keras
from keras import ops

from keras_attention.checks import check_flag, check_positive
from keras_attention.layers.base import AttentionLayer
from keras_attention.layers.history import get_history, serialize_history
from keras_attention.layers.projections import ProjectionSettings, project_steps
from keras_attention.products import batch_matmul
from keras_attention.scores import additive_score


@keras.saving.register_keras_serializable(package="keras_attention")
class BahdanauAttention(AttentionLayer):
    """Additive attention, appendix A.1.2 of [Bahdanau et al., 2015](https://arxiv.org/abs/1409.0473).

        score(q, k) = v^T tanh(W q + U k + b)
        weights = softmax(score)
        context = sum_s weights_s value_s

    W, U and v are learned. The bias b, absent in the paper's text ("we omit all the bias terms"),
    is optional. In the paper q is the decoder's previous state s_{t-1} and k = value = h_s, the
    encoder's outputs. `keras.layers.AdditiveAttention` has v only, no W and no U.

    With `normalize` the vector v has a learned length g, as in weight normalisation
    ([Salimans and Kingma, 2016](https://arxiv.org/abs/1602.07868), equation 2; for attention,
    [Raffel et al., 2017](https://arxiv.org/abs/1704.00784), equation 16):

        score(q, k) = g v^T / |v| tanh(W q + U k + b)

    With `history` the score also reads the weights of the steps before, as features f_s of each
    memory step s (see `Coverage` and `LocationFeatures`):

        score(q, k_s) = v^T tanh(W q + U k_s + V f_s + b)

    Args:
        units: U, the size of the hidden layer.
        use_bias: whether to add b; by default only with `normalize`.
        normalize: whether v is normalised and scaled by g.
        history: "coverage", "location", `Coverage(...)`, `LocationFeatures(...)`, or None.
        dropout: the fraction of attention weights dropped in training, in [0, 1).
        seed: integer seed of the dropout.
        kernel_initializer, kernel_regularizer, kernel_constraint: for W, U, V and v.
        bias_initializer, bias_regularizer, bias_constraint: for b.
        **kwargs: `normalizer` (see `AttentionLayer`) and arguments of `keras.layers.Layer` (name,
            dtype, ...).

    Call arguments:
        query: `[B, T, Dq]`, or `[B, Dq]` for one step.
        value: `[B, S, Dv]`; by default the query (self-attention).
        key: `[B, S, Dk]`; by default `value`.
        query_mask, value_mask, key_mask, attention_mask, attention_bias, memory, alignment,
        return_attention_scores, use_causal_mask: see the base class, `AttentionLayer`.

    Returns:
        The context `[B, T, Dv]`, or `(context, weights)` with weights `[B, T, S]`; for one step
        `[B, Dv]` and `[B, S]`. The values are not projected.

    Masking:
        Boolean, True = may attend. A query that may attend to nothing gets weights 0 and
        context 0. The context carries the query's Keras mask.

    Raises:
        ValueError: if `units` is not a positive integer, `history` or `normalizer` is unknown, a
            mask is floating or of a wrong shape, or `dropout` lies outside [0, 1).

    Example:

    >>> import numpy as np
    >>> layer = BahdanauAttention(units=8)
    >>> state, memory = np.ones((2, 3)), np.ones((2, 5, 4))
    >>> context, weights = layer(state, memory, return_attention_scores=True)
    >>> context.shape, weights.shape
    (TensorShape([2, 4]), TensorShape([2, 5]))
    """

    def __init__(
        self,
        units,
        use_bias=None,
        normalize=False,
        history=None,
        dropout=0.0,
        seed=None,
        kernel_initializer="glorot_uniform",
        bias_initializer="zeros",
        kernel_regularizer=None,
        bias_regularizer=None,
        kernel_constraint=None,
        bias_constraint=None,
        **kwargs,
    ):
        super().__init__(dropout=dropout, seed=seed, **kwargs)
        self.units = check_positive("units", units)
        self.use_bias = bool(normalize) if use_bias is None else use_bias
        self.normalize = check_flag("normalize", normalize)
        self.history = get_history(history, self.dtype_policy)
        self._settings = ProjectionSettings(
            kernel_initializer,
            bias_initializer,
            kernel_regularizer,
            bias_regularizer,
            kernel_constraint,
            bias_constraint,
        )

    def _build(self, query_shape, value_shape, key_shape):
        settings = self._settings
        self.query_projection = settings.dense(
            0, self.units, use_bias=self.use_bias, name="query", dtype=self.dtype_policy
        )
        self.key_projection = settings.dense(
            1, self.units, use_bias=False, name="key", dtype=self.dtype_policy
        )
        self.query_projection.build(query_shape)
        self.key_projection.build(key_shape)
        self.v = settings.add_kernel(self, 2, (self.units,), "v")
        if self.normalize:
            start = keras.initializers.Constant(self.units**-0.5)
            self.g = self.add_weight(name="g", shape=(), initializer=start)
        if self.history is not None:
            if not self.history.built:  # loaded from a file it is built already
                self.history.build(value_shape)
            shape = (self.history.features, self.units)
            self.history_kernel = settings.add_kernel(self, 3, shape, "history_kernel")

    def _project_query(self, query):
        return project_steps(self.query_projection, query)

    def _project_key(self, key):
        return project_steps(self.key_projection, key)

    def _score(self, query, key):
        v = self.v
        if self.normalize:
            v = self.g * v * ops.rsqrt(ops.sum(ops.square(v)))
        return additive_score(query, key, ops.cast(v, self.compute_dtype))

    def _carries(self):
        own = () if self.history is None else self.history.carries
        return tuple(sorted({*super()._carries(), *own}))

    def _score_after(self, alignment, prepared):
        if self.history is None:
            return self._score
        # (A Dense layer on three axes could not be differentiated in a loop under XLA.)
        features = self.history(alignment, prepared.values)
        features = batch_matmul(features, ops.cast(self.history_kernel, features.dtype))
        return lambda query, key: self._score(query, key + ops.cast(features, key.dtype))

    def get_config(self):
        own = {
            "units": self.units,
            "use_bias": self.use_bias,
            "normalize": self.normalize,
            "history": serialize_history(self.history),
            **self._settings.config(),
        }
        return {**super().get_config(), **own}

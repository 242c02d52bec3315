"""Luong's attention: four score functions behind one name."""

import keras
from keras import ops

from keras_attention.checks import check_positive
from keras_attention.layers.base import AttentionLayer
from keras_attention.layers.projections import ProjectionSettings, project_steps
from keras_attention.scores import additive_score, dot_score, scaled_dot_score

SCORE_MODES = ("dot", "scaled_dot", "general", "concat")


@keras.saving.register_keras_serializable(package="keras_attention")
class LuongAttention(AttentionLayer):
    """Global attention, section 3.1 of [Luong et al., 2015](https://arxiv.org/abs/1508.04025).

        dot:         score(h_t, h_s) = h_t^T h_s
        scaled_dot:  score(h_t, h_s) = h_t^T h_s / sqrt(D)
        general:     score(h_t, h_s) = h_t^T W h_s
        concat:      score(h_t, h_s) = v^T tanh(W [h_t; h_s])

        weights = softmax(score)
        context = sum_s weights_s value_s

    The scores dot, general and concat are equation 8 of the paper; scaled_dot keeps the scores
    of long vectors small. In the paper the query h_t is the decoder's current state and
    key = value = h_s, the encoder's outputs.

    Args:
        score_mode: "dot", "scaled_dot", "general" or "concat".
        units: U, the size of the hidden layer of "concat"; by default the size of the query.
        dropout: the fraction of attention weights dropped in training, in [0, 1).
        seed: integer seed of the dropout.
        kernel_initializer, kernel_regularizer, kernel_constraint: for W and v.
        **kwargs: arguments of `keras.layers.Layer` (name, dtype, ...).

    Call arguments:
        query: `[B, T, Dq]`, or `[B, Dq]` for one step.
        value: `[B, S, Dv]`; by default the query (self-attention).
        key: `[B, S, Dk]`; by default `value`. For the dot scores Dk = Dq.
        query_mask, value_mask, key_mask, attention_mask, attention_bias, memory,
        return_attention_scores, use_causal_mask: see the base class, `AttentionLayer`.

    Returns:
        The context `[B, T, Dv]`, or `(context, weights)` with weights `[B, T, S]`; for one step
        `[B, Dv]` and `[B, S]`.

    Masking:
        Boolean, True = may attend. A query that may attend to nothing gets weights 0 and
        context 0. The context carries the query's Keras mask.

    Raises:
        ValueError: if `score_mode` is unknown, `units` is given without "concat" or is not a
            positive integer, query and key of a dot score differ in size, a mask is floating or
            of a wrong shape, or `dropout` lies outside [0, 1).

    Example:

    >>> import numpy as np
    >>> layer = LuongAttention("general")
    >>> states, memory = np.ones((2, 3, 6)), np.ones((2, 5, 4))
    >>> context, weights = layer(states, memory, return_attention_scores=True)
    >>> context.shape, weights.shape
    (TensorShape([2, 3, 4]), TensorShape([2, 3, 5]))
    """

    def __init__(
        self,
        score_mode="dot",
        units=None,
        dropout=0.0,
        seed=None,
        kernel_initializer="glorot_uniform",
        kernel_regularizer=None,
        kernel_constraint=None,
        **kwargs,
    ):
        super().__init__(dropout=dropout, seed=seed, **kwargs)
        if score_mode not in SCORE_MODES:
            raise ValueError(
                f"`score_mode` must be one of {', '.join(SCORE_MODES)}. Received: {score_mode!r}."
            )
        if units is not None and score_mode != "concat":
            raise ValueError(
                f"`units` belongs to score_mode 'concat'. Received units={units!r} with "
                f"score_mode={score_mode!r}."
            )
        self.score_mode = score_mode
        self.units = None if units is None else check_positive("units", units)
        self._settings = ProjectionSettings(
            kernel_initializer=kernel_initializer,
            kernel_regularizer=kernel_regularizer,
            kernel_constraint=kernel_constraint,
        )

    def _build(self, query_shape, value_shape, key_shape):
        settings, policy = self._settings, self.dtype_policy
        query_size = query_shape[-1]
        if self.score_mode == "general":
            # W h_s: the product with the key, which a memory computes once.
            self.key_projection = settings.dense(
                0, query_size, use_bias=False, name="key", dtype=policy
            )
            self.key_projection.build(key_shape)
        elif self.score_mode == "concat":
            # W [h_t; h_s] = W_q h_t + W_s h_s, the two halves of W.
            units = self.units or query_size
            self.query_projection = settings.dense(
                0, units, use_bias=False, name="query", dtype=policy
            )
            self.key_projection = settings.dense(1, units, use_bias=False, name="key", dtype=policy)
            self.query_projection.build(query_shape)
            self.key_projection.build(key_shape)
            self.v = settings.add_kernel(self, 2, (units,), "v")
        elif query_size != key_shape[-1]:
            raise ValueError(
                f"score_mode {self.score_mode!r} needs query and key of the same size. Received "
                f"query shape {query_shape}, key shape {key_shape}; 'general' takes any sizes."
            )

    def _project_query(self, query):
        if self.score_mode == "concat":
            return project_steps(self.query_projection, query)
        return query

    def _project_key(self, key):
        return (
            project_steps(self.key_projection, key)
            if self.score_mode in ("general", "concat")
            else key
        )

    def _score(self, query, key):
        if self.score_mode == "concat":
            return additive_score(query, key, ops.cast(self.v, self.compute_dtype))
        if self.score_mode == "scaled_dot":
            return scaled_dot_score(query, key)
        return dot_score(query, key)

    def get_config(self):
        settings = self._settings.config()
        kernel = {name: settings[name] for name in settings if name.startswith("kernel")}
        own = {"score_mode": self.score_mode, "units": self.units, **kernel}
        return {**super().get_config(), **own}

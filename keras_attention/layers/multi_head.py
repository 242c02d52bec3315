"""Multi-head attention: self, cross, causal, windowed, grouped heads, over one or more axes."""

import keras
from keras import ops

from keras_attention.checks import as_tuple, check_positive
from keras_attention.layers import heads
from keras_attention.layers.axes import AttentionAxes
from keras_attention.layers.base import AttentionLayer
from keras_attention.layers.head_cache import HeadCache
from keras_attention.layers.head_norm import check_norm, head_norm
from keras_attention.layers.head_pieces import HeadPieces
from keras_attention.layers.places import get_function
from keras_attention.layers.projections import ProjectionSettings
from keras_attention.masks import combine_masks
from keras_attention.positions import get_position, serialize_position
from keras_attention.scores import check_cap


@keras.saving.register_keras_serializable(package="keras_attention")
class MultiHeadAttention(HeadPieces, HeadCache, AttentionAxes, AttentionLayer):
    """Multi-head attention, section 3.2.2 of [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762).

        MultiHead(Q, K, V) = Concat(head_1, ..., head_N) W_O
        head_n = softmax((Q W_Q,n) (K W_K,n)^T / sqrt(key_dim)) (V W_V,n)

    Takes the constructor arguments of `keras.layers.MultiHeadAttention`, has the same weights in
    the same order (query, key, gate if any, value, attention_output), and gives the same
    numbers wherever that layer is right. `num_key_value_heads` groups heads as in
    [Ainslie et al., 2023](https://arxiv.org/abs/2305.13245): query head n reads key and value
    head n // (N / num_key_value_heads); 1 is multi-query attention.

    Args:
        num_heads: N, the number of query heads.
        key_dim: size of each head's query and key.
        value_dim: size of each head's value; by default `key_dim`.
        dropout: the fraction of attention weights dropped in training, in [0, 1).
        use_bias: whether the projections have biases.
        output_shape: features of the output, an integer or a tuple; by default the query's.
        attention_axes: the axes to attend over, for inputs `[B, ..., D]`; by default all but the
            first and the last. Several axes are taken as one, in row-major order, also for
            `use_causal_mask` and `sliding_window`.
        sliding_window: only keys less than this many steps away, on either side, are seen.
        flash_attention: None or False. The way of computing is chosen by the layer.
        kernel_initializer, bias_initializer, kernel_regularizer, bias_regularizer,
        activity_regularizer, kernel_constraint, bias_constraint: for all projections. A seeded
            initializer gets a seed of its own for each projection.
        use_gate: whether the heads are multiplied by sigmoid(Q W_G) before W_O.
        seed: integer seed of the dropout.
        num_key_value_heads: number of key and value heads, a divisor of `num_heads`; by default
            `num_heads`.
        position: how heads know positions: None, "rotary", "alibi", "relative", or
            `RotaryPosition(...)`, `ALiBi()`, `RelativeBias(...)`.
        logit_soft_cap: positive number c, or None: scores become c tanh(scores / c).
        query_key_norm: None, "rms" or "layer": normalises each head's queries and keys
            ([Henry et al., 2020](https://arxiv.org/abs/2010.04245)), with learned scales.
        score_modifier: function `(scores, batch, head, query_index, key_index) -> scores`, after
            the soft cap and before biases; indices are integers that broadcast to the scores
            `[B, N, T, S]`, of queries and keys their positions. -inf forbids a pair. Register it
            with Keras to save it.
        mask_function: function `(batch, head, query_index, key_index) -> boolean`, True = may
            attend; anded with the other masks.
        **kwargs: arguments of `keras.layers.Layer` (name, dtype, ...), and `normalizer`, e.g.
            `SinkSoftmax()`.

    Call arguments:
        query: `[B, T, Dq]`, `[B, Dq]` for one step, or `[B, ..., Dq]`.
        value: `[B, S, Dv]`; by default the query (self-attention).
        key: `[B, S, Dk]`; by default `value`.
        attention_mask, attention_bias: `[B, T, S]` or `[B, N, T, S]`; over several axes
            `[B, T axes, S axes]`, optionally with the other axes and N after B.
        query_mask, value_mask, key_mask, memory, positions, key_positions,
        return_attention_scores, use_causal_mask: see the base class, `AttentionLayer`. With more
            axes, masks have the shape of their tensor without the features.
        cache: of self-attention, what `start_cache` or the last call returned: the query's keys
            and values are put behind those in it, and all may be attended to. Positions go on
            from there; padded steps (`query_mask`), e.g. before shorter prompts, take none.

    Returns:
        The output `[B, T, Dq]` (or `output_shape`), or `(output[, weights][, cache])` with weights
        `[B, N, T, S]`; for one step `[B, Dq]` and `[B, N, S]`. With a cache S is the number of
        slots attended to.

    Masking:
        Boolean, True = may attend. A query that may attend to nothing, in any head, gets output
        0 (not the output bias) and weights 0. The output carries the query's Keras mask; the
        masks of the inputs stay where they are.

    Raises:
        ValueError: if a size is not a positive integer, `num_key_value_heads` does not divide
            `num_heads`, `flash_attention` is True, `attention_axes` do not exist, a mask is
            floating or of a wrong shape, or `dropout` lies outside [0, 1).

    Example:

    >>> import numpy as np
    >>> layer = MultiHeadAttention(num_heads=2, key_dim=4)
    >>> query, memory = np.ones((1, 5, 8)), np.ones((1, 7, 6))
    >>> output, weights = layer(query, memory, return_attention_scores=True)
    >>> output.shape, weights.shape
    (TensorShape([1, 5, 8]), TensorShape([1, 2, 5, 7]))
    """

    def __init__(
        self,
        num_heads,
        key_dim,
        value_dim=None,
        dropout=0.0,
        use_bias=True,
        output_shape=None,
        attention_axes=None,
        sliding_window=None,
        flash_attention=None,
        kernel_initializer="glorot_uniform",
        bias_initializer="zeros",
        kernel_regularizer=None,
        bias_regularizer=None,
        activity_regularizer=None,
        kernel_constraint=None,
        bias_constraint=None,
        use_gate=False,
        seed=None,
        num_key_value_heads=None,
        position=None,
        logit_soft_cap=None,
        query_key_norm=None,
        score_modifier=None,
        mask_function=None,
        **kwargs,
    ):
        super().__init__(dropout=dropout, seed=seed, **kwargs)
        if self._carries():
            raise ValueError(
                "`normalizer` must not depend on earlier steps: what goes from step to step has "
                f"no heads. Received: {type(self.normalizer).__name__}."
            )
        self._num_heads = check_positive("num_heads", num_heads)
        self._key_dim = check_positive("key_dim", key_dim)
        self._value_dim = check_positive("value_dim", key_dim if value_dim is None else value_dim)
        self._num_key_value_heads = check_positive(
            "num_key_value_heads", num_heads if num_key_value_heads is None else num_key_value_heads
        )
        if num_heads % self._num_key_value_heads:
            raise ValueError(
                f"`num_key_value_heads` must divide `num_heads` = {num_heads}. "
                f"Received: {num_key_value_heads}."
            )
        if flash_attention:
            raise ValueError(
                "`flash_attention` must be None or False: this layer chooses its way of "
                "computing from the shapes. Received: flash_attention=True."
            )
        if sliding_window is not None:
            check_positive("sliding_window", sliding_window)
        self._sliding_window = sliding_window
        self.position = get_position(position)
        self._logit_soft_cap = None if logit_soft_cap is None else check_cap(logit_soft_cap)
        self._query_key_norm = check_norm(query_key_norm)
        self._score_modifier = get_function("score_modifier", score_modifier)
        self._mask_function = get_function("mask_function", mask_function)
        self._use_bias = use_bias
        self._use_gate = use_gate
        self._output_shape = as_tuple("output_shape", output_shape)
        self._attention_axes = as_tuple("attention_axes", attention_axes, positive=False)
        self._activity_regularizer = keras.regularizers.get(activity_regularizer)
        self._settings = ProjectionSettings(
            kernel_initializer,
            bias_initializer,
            kernel_regularizer,
            bias_regularizer,
            kernel_constraint,
            bias_constraint,
        )

    # Sub-layers carry the names under which Keras's layer saves its own: its weight files load.

    def _build(self, query_shape, value_shape, key_shape):
        query_shape, value_shape, key_shape = (
            self._steps_shape(shape) for shape in (query_shape, value_shape, key_shape)
        )
        query_heads, kv_heads = self._num_heads, self._num_key_value_heads
        self.query_dense = self._to_heads(0, "query", query_shape, query_heads, self._key_dim)
        self.key_dense = self._to_heads(1, "key", key_shape, kv_heads, self._key_dim)
        if self._use_gate:
            self._gate_dense = self._to_heads(
                4, "gate", query_shape, query_heads, self._value_dim, activation="sigmoid"
            )
        self.value_dense = self._to_heads(2, "value", value_shape, kv_heads, self._value_dim)
        self.query_norm, self.key_norm = (
            head_norm(self._query_key_norm, self._key_dim, f"{side}_norm", self.dtype_policy)
            for side in ("query", "key")
        )
        if isinstance(self.position, keras.layers.Layer) and not self.position.built:
            self.position.build(query_heads)
        features = self._output_features(query_shape, value_shape)
        inner = "xyz"[: len(features)]
        self.output_dense = self._einsum_dense(
            3, "attention_output", f"anv,nv{inner}->a{inner}", features, inner
        )
        self.output_dense.build((None, query_heads, self._value_dim))

    def _to_heads(self, index, name, shape, count, size, **kwargs):
        """A projection `[A, D]` -> `[A, count, size]`, see `heads.project`."""
        dense = self._einsum_dense(index, name, "ai,inv->anv", (count, size), "nv", **kwargs)
        dense.build((None, shape[-1]))
        return dense

    def _einsum_dense(self, index, name, equation, output_shape, bias_axes, **kwargs):
        return keras.layers.EinsumDense(
            equation,
            output_shape=tuple(output_shape),
            bias_axes=bias_axes if self._use_bias else None,
            name=name,
            dtype=self.dtype_policy,
            **self._settings.arguments(index),
            **kwargs,
        )

    def _through(self, dense, x, features=1):
        projected = heads.project(dense, x, features)
        if self._activity_regularizer is not None:
            # As Keras does it, for each sample. (The dense layer sees steps as samples.)
            size = ops.cast(ops.maximum(ops.shape(projected)[0], 1), projected.dtype)
            self.add_loss(self._activity_regularizer(projected) / size)
        return projected

    def _project_query(self, query):
        queries = self._through(self.query_dense, query)
        queries = queries if self.query_norm is None else self.query_norm(queries)
        return self._group_heads(ops.swapaxes(queries, -2, -3))

    def _project_key(self, key):
        keys = self._through(self.key_dense, key)
        return self._key_value_heads(keys if self.key_norm is None else self.key_norm(keys))

    def _project_value(self, value):
        return self._key_value_heads(self._through(self.value_dense, value))

    def _key_value_heads(self, projected):
        projected = ops.swapaxes(projected, -2, -3)
        return ops.expand_dims(projected, -3) if self._grouped else projected

    def _finish(self, context, query, attending, key_size):
        context = ops.swapaxes(self._ungroup(context), -2, -3)
        if self._use_gate:
            context = context * self._through(self._gate_dense, query)
        output = self._through(self.output_dense, context, features=2)
        if not isinstance(key_size, int) or key_size == 0:  # there may be no keys
            some = ops.any(ops.ones((1, key_size), "bool"), axis=-1, keepdims=True)
            attending = combine_masks(attending, some)
        if attending is None:
            return output
        # Rows that may attend to nothing are 0, not the output bias.
        rows = ops.squeeze(attending, -1)
        rows = rows if len(attending.shape) == 2 else ops.any(rows, axis=-2)
        features = len(output.shape) - len(context.shape) + 2
        rows = ops.reshape(rows, (*ops.shape(rows), *(1,) * features))
        return ops.where(rows, output, ops.zeros((), output.dtype))

    # Grouped heads: `[..., N, T, S]` <-> `[..., N_kv, N / N_kv, T, S]`.

    @property
    def _grouped(self):
        return self._num_key_value_heads != self._num_heads

    def _group_heads(self, values):
        if values is None or not self._grouped or len(values.shape) == 2:
            return values
        return heads.split_groups(values, self._num_key_value_heads)

    def _ungroup(self, x):
        return heads.merge_groups(x) if self._grouped else x

    def _memory_mask_shape(self, shape):
        rank_of_heads = 4 if self._grouped else 3  # (N_kv, 1, S, H) or (N, S, H)
        return (*shape[: len(shape) - rank_of_heads], shape[-2])

    def _output_features(self, query_shape, value_shape):
        return self._output_shape or (query_shape[-1],)

    def get_config(self):
        regularizer = self._activity_regularizer
        serialize = keras.saving.serialize_keras_object
        own = {
            "num_heads": self._num_heads,
            "key_dim": self._key_dim,
            "value_dim": self._value_dim,
            "use_bias": self._use_bias,
            "output_shape": self._output_shape,
            "attention_axes": self._attention_axes,
            "sliding_window": self._sliding_window,
            "flash_attention": None,
            "activity_regularizer": keras.regularizers.serialize(regularizer)
            if regularizer
            else None,
            "use_gate": self._use_gate,
            "num_key_value_heads": self._num_key_value_heads,
            "position": serialize_position(self.position),
            "logit_soft_cap": self._logit_soft_cap,
            "query_key_norm": self._query_key_norm,
            "score_modifier": serialize(self._score_modifier),
            "mask_function": serialize(self._mask_function),
            **self._settings.config(),
        }
        return {**super().get_config(), **own}

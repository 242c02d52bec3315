"""Luong's attention: five score functions, global or local."""

import keras
from keras import ops

from keras_attention.attend import hide
from keras_attention.checks import check_flag, check_positive
from keras_attention.layers.base import AttentionLayer
from keras_attention.layers.local import (
    attend_locally,
    monotonic_positions,
    places_of,
    predicted_positions,
)
from keras_attention.layers.projections import ProjectionSettings, project_steps
from keras_attention.masks import combine_masks
from keras_attention.scores import (
    DotProduct,
    additive_score,
    dot_score,
    location_keys,
    scaled_dot_score,
)

SCORE_MODES = ("dot", "scaled_dot", "general", "concat", "location")
LOCAL_MODES = ("monotonic", "predictive")


@keras.saving.register_keras_serializable(package="keras_attention")
class LuongAttention(AttentionLayer):
    """Global and local attention, section 3 of [Luong et al., 2015](https://arxiv.org/abs/1508.04025).

        dot:         score(h_t, h_s) = h_t^T h_s
        scaled_dot:  score(h_t, h_s) = h_t^T h_s / sqrt(D)
        general:     score(h_t, h_s) = h_t^T W h_s
        concat:      score(h_t, h_s) = v^T tanh(W [h_t; h_s])
        location:    score(h_t, s) = (W h_t)_s

        weights = softmax(score)
        context = sum_s weights_s value_s

    The scores dot, general, concat and location are those of section 3.1; scaled_dot keeps the
    scores of long vectors small. In the paper the query h_t is the decoder's current state and
    key = value = h_s, the encoder's outputs.

    With `local` (section 3.2) a query sees the memory steps s with |s - p_t| <= D only, and the
    softmax runs over these:

        monotonic (local-m):   p_t = t
        predictive (local-p):  p_t = S sigmoid(v_p^T tanh(W_p h_t)),
                               weights_s = softmax(score)_s exp(-(s - p_t)^2 / (2 sigma^2)),
                               sigma = D / 2   (equation 10; not normalised again)

    The window is gathered: time and memory grow with T * D, not with T * S, unless the weights
    `[B, T, S]` are asked for.

    Steps count from 0, and masked ones not at all, neither those of the memory (s, S and the rows
    of the location score's W) nor those of the query (t): padding on either side changes nothing.

    Args:
        score_mode: "dot", "scaled_dot", "general", "concat" or "location".
        units: the size of the hidden layer of "concat" and of that of "predictive" (the rows of
            W_p); by default the size of the query.
        local: "monotonic" or "predictive"; None for global attention.
        window: D, a positive integer; only with `local`.
        scale: whether a learned number, at first 1, multiplies the scores of "dot" or "general".
        max_memory: the number of memory steps that the location score has rows of W for, only
            with "location"; steps behind them get weight 0.
        dropout: the fraction of attention weights dropped in training, in [0, 1).
        seed: integer seed of the dropout.
        kernel_initializer, kernel_regularizer, kernel_constraint: for W, v, W_p and v_p.
        **kwargs: `normalizer` (see `AttentionLayer`) and arguments of `keras.layers.Layer` (name,
            dtype, ...).

    Call arguments:
        query: `[B, T, Dq]`, or `[B, Dq]` for one step.
        value: `[B, S, Dv]`; by default the query (self-attention).
        key: `[B, S, Dk]`; by default `value`. For the dot scores Dk = Dq.
        query_mask, value_mask, key_mask, attention_mask, attention_bias, memory, alignment,
        return_attention_scores, use_causal_mask: see the base class, `AttentionLayer`. One step
        of "monotonic" is t = 0 unless the `alignment` of the step before says otherwise.

    Returns:
        The context `[B, T, Dv]`, or `(context, weights)` with weights `[B, T, S]`; for one step
        `[B, Dv]` and `[B, S]`.

    Masking:
        Boolean, True = may attend. A query that may attend to nothing, or whose window holds no
        real step, gets weights 0 and context 0. The context carries the query's Keras mask.

    Raises:
        ValueError: if `score_mode` or `local` is unknown, an argument is given that belongs to
            another mode or is missing, `units`, `window` or `max_memory` is not a positive
            integer, query and key of a dot score differ in size, a mask is floating or of a wrong
            shape, or `dropout` lies outside [0, 1).

    Example:

    >>> import numpy as np
    >>> layer = LuongAttention("general", local="predictive", window=2)
    >>> states, memory = np.ones((2, 3, 6)), np.ones((2, 5, 4))
    >>> context, weights = layer(states, memory, return_attention_scores=True)
    >>> context.shape, weights.shape
    (TensorShape([2, 3, 4]), TensorShape([2, 3, 5]))
    """

    def __init__(
        self,
        score_mode="dot",
        units=None,
        local=None,
        window=None,
        scale=False,
        max_memory=None,
        dropout=0.0,
        seed=None,
        kernel_initializer="glorot_uniform",
        kernel_regularizer=None,
        kernel_constraint=None,
        **kwargs,
    ):
        super().__init__(dropout=dropout, seed=seed, **kwargs)
        _check_modes(score_mode, units, local, window, scale, max_memory)
        if local is not None and getattr(self.normalizer, "carries", ()):
            raise ValueError(
                f"`normalizer` must not depend on earlier steps where `local` is given. Received: "
                f"{type(self.normalizer).__name__} with local={local!r}."
            )
        self.score_mode = score_mode
        self.units = None if units is None else check_positive("units", units)
        self.local = local
        self.window = None if window is None else check_positive("window", window)
        self.scale = check_flag("scale", scale)
        self.max_memory = None if max_memory is None else check_positive("max_memory", max_memory)
        self._windowed = local is not None
        self._settings = ProjectionSettings(
            kernel_initializer=kernel_initializer,
            kernel_regularizer=kernel_regularizer,
            kernel_constraint=kernel_constraint,
        )

    def _build(self, query_shape, value_shape, key_shape):
        settings, query_size = self._settings, query_shape[-1]
        units = self.units or query_size
        if self.score_mode == "general":
            # W h_s: the product with the key, which a memory computes once.
            self.key_projection = self._projection(0, query_size, key_shape, "key")
        elif self.score_mode == "concat":
            # W [h_t; h_s] = W_q h_t + W_s h_s, the two halves of W.
            self.query_projection = self._projection(0, units, query_shape, "query")
            self.key_projection = self._projection(1, units, key_shape, "key")
            self.v = settings.add_kernel(self, 2, (units,), "v")
        elif self.score_mode == "location":
            shape = (query_size, self.max_memory)
            self.location_kernel = settings.add_kernel(self, 0, shape, "location_kernel")
        elif query_size != key_shape[-1]:
            raise ValueError(
                f"score_mode {self.score_mode!r} needs query and key of the same size. Received "
                f"query shape {query_shape}, key shape {key_shape}; 'general' takes any sizes."
            )
        if self.scale:
            self.g = self.add_weight(name="g", shape=(), initializer="ones")
        if self.local == "predictive":
            self.position_projection = self._projection(3, units, query_shape, "position")
            self.v_p = settings.add_kernel(self, 4, (units,), "v_p")

    def _projection(self, index, units, input_shape, name):
        projection = self._settings.dense(
            index, units, use_bias=False, name=name, dtype=self.dtype_policy
        )
        projection.build(input_shape)
        return projection

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
        scores = dot_score(query, key)
        return scores * ops.cast(self.g, scores.dtype) if self.scale else scores

    def _product(self, queries):
        if self.score_mode in ("dot", "general") and not self.scale:
            return DotProduct(1.0)
        if self.score_mode == "scaled_dot":
            return DotProduct(float(queries.shape[-1]) ** -0.5)

    def _carries(self):
        return ("position",) if self.local == "monotonic" else super()._carries()

    def _attend(self, prepared, alignment, training):
        if self.score_mode == "location":
            prepared = self._with_location_keys(prepared)
        if self.local is None:
            return super()._attend(prepared, alignment, training)
        positions, alignment = self._positions(prepared, alignment)
        if not _comparable(ops.shape(prepared.queries)[1], ops.shape(prepared.values)[1]):
            context, weights, _ = super()._attend(prepared, alignment, training)
            return context, weights, alignment  # of the same shapes
        context, weights = attend_locally(
            prepared,
            positions,
            self.window,
            self._score,
            self.normalizer,
            self._seed_generator,
            fade=self.local == "predictive",
        )
        return context, weights, alignment

    def _with_location_keys(self, prepared):
        """The row of W of each memory step as its key; steps that have none are masked."""
        size = ops.shape(prepared.values)[1]
        places = places_of(prepared.memory_mask, size)
        known = combine_masks(prepared.pairs.mask, (places < self.max_memory)[:, None])
        pairs = prepared.pairs._replace(mask=known)
        keys = location_keys(places, ops.cast(self.location_kernel, self.compute_dtype))
        values = hide(prepared.values, pairs.keys())
        return prepared._replace(keys=keys, values=values, pairs=pairs)

    def _positions(self, prepared, alignment):
        """The positions p_t, `[B, T]`, and the alignment after these steps."""
        if self.local == "monotonic":
            steps, done = ops.shape(prepared.queries)[1], alignment["position"]
            positions, done = monotonic_positions(done, prepared.query_mask, steps)
            return positions, {"position": done}
        hidden = project_steps(self.position_projection, prepared.steps)
        size = ops.shape(prepared.values)[1]
        return predicted_positions(hidden, self.v_p, prepared.memory_mask, size), alignment

    def get_config(self):
        settings = self._settings.config()
        kernel = {name: settings[name] for name in settings if name.startswith("kernel")}
        own = {
            "score_mode": self.score_mode,
            "units": self.units,
            "local": self.local,
            "window": self.window,
            "scale": self.scale,
            "max_memory": self.max_memory,
            **kernel,
        }
        return {**super().get_config(), **own}


def _check_modes(score_mode, units, local, window, scale, max_memory):
    """Raises unless the modes are known, and each argument is there exactly where it is used."""
    modes = ("score_mode", score_mode, SCORE_MODES), ("local", local, (None, *LOCAL_MODES))
    for name, value, known in modes:
        if value not in known:
            raise ValueError(
                f"`{name}` must be one of {', '.join(map(str, known))}. Received: {value!r}."
            )
    hidden = score_mode == "concat" or local == "predictive"
    for name, value, used, home in (
        ("units", units, hidden, "score_mode 'concat' and to local='predictive'"),
        ("scale", scale or None, score_mode in ("dot", "general"), "score_mode 'dot' or 'general'"),
        ("window", window, local is not None, "local='monotonic' or 'predictive'"),
        ("max_memory", max_memory, score_mode == "location", "score_mode 'location'"),
    ):
        if value is not None and not used:
            raise ValueError(
                f"`{name}` belongs to {home}. Received {name}={value!r} with "
                f"score_mode={score_mode!r} and local={local!r}."
            )
        if value is None and used and name in ("window", "max_memory"):
            raise ValueError(f"`{name}`, a positive integer, is needed with {home}.")


def _comparable(*sizes):
    """Whether sizes are known, or tensors; JAX infers shapes of Functional models with neither."""
    return keras.backend.backend() != "jax" or all(isinstance(size, int) for size in sizes)

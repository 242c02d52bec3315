"""Scheduled sampling: training on the decoder's own tokens instead of the given ones."""

import copy
import math
from numbers import Real

import keras
from keras import ops
from keras.optimizers.schedules import LearningRateSchedule

from keras_attention.layers.outputs import VaryingOutputs


@keras.saving.register_keras_serializable(package="keras_attention")
class InverseSigmoid(LearningRateSchedule):
    """How often to sample after i training steps, section 2.4 of
    [Bengio et al., 2015](https://arxiv.org/abs/1506.03099).

        rate(i) = 1 - k / (k + exp(i / k))

    Args:
        k: a number of at least 1; the larger, the later the rate rises (it is about 0.5 after
            k ln k steps).

    Returns:
        A schedule, for `ScheduledSampling(rate=...)`.

    Raises:
        ValueError: if `k` is less than 1.

    Example: a rate `[]` at each of some steps

    >>> [round(float(InverseSigmoid(100)(step)), 2) for step in (0, 461, 1000)]
    [0.01, 0.5, 1.0]
    """

    def __init__(self, k):
        if not isinstance(k, Real) or not 1 <= k < math.inf:
            raise ValueError(f"`k` must be a number of at least 1. Received: {k!r}.")
        self.k = k

    def __call__(self, step):
        # k / (k + e^x) = 1 / (1 + e^(x - ln k)): no overflow.
        return ops.sigmoid(ops.cast(step, "float32") / self.k - math.log(self.k))

    def get_config(self):
        return {"k": self.k}


@keras.saving.register_keras_serializable(package="keras_attention")
class ScheduledSampling(VaryingOutputs, keras.layers.Layer):
    """From target tokens to logits, with some of the tokens replaced by the model's own.

        x_t = embedding(y_t), or with probability `rate` embedding(sample(p_{t-1}))
        p_t = softmax(output(decoder(x_t, ...)))

    [Bengio et al., 2015](https://arxiv.org/abs/1506.03099), section 2.4: a coin for each token, not
    for each sequence. The first token is never replaced. Outside of training, and while the rate
    is 0, it is `output(decoder(embedding(tokens), memory))`. No gradient goes through the
    sampling.

    Args:
        decoder: `BahdanauDecoder` or `LuongDecoder`.
        embedding: the layer that embeds tokens, e.g. `keras.layers.Embedding`.
        output: the layer from the decoder's output `[..., U]` to logits `[..., V]`; None for
            the embedding turned round, a `keras.layers.ReversibleEmbedding`.
        rate: the probability of replacing a token, a number in [0, 1] or a
            `keras.optimizers.schedules.LearningRateSchedule` of the number of training steps,
            e.g. `InverseSigmoid(1000)`.
        dropout: the fraction dropped in training of embeddings and of the decoder's outputs.
        draw: whether the model's token is drawn from its probabilities; if not, it is the most
            probable one.
        seed: integer seed.
        **kwargs: arguments of `keras.layers.Layer`.

    Call arguments:
        tokens: `[B, T]` integers, the target shifted right.
        memory, initial_state, memory_mask, mask: as of the decoder; the mask is by default that
            of the embedding.
        return_attention_scores: whether to return the decoder's weights `[B, T, S]` as well.
        training: whether to replace tokens.

    Returns:
        Logits `[B, T, V]`, or `(logits, weights)`.

    Masking:
        As of the decoder.

    Raises:
        ValueError: if `rate` lies outside [0, 1], or `decoder` is no decoder of this package.

    Example:

    >>> import numpy as np
    >>> from keras_attention import LuongAttention, LuongDecoder
    >>> decoder = LuongDecoder(keras.layers.GRUCell(8), LuongAttention("dot"))
    >>> embedding, output = keras.layers.Embedding(5, 4), keras.layers.Dense(5)
    >>> layer = ScheduledSampling(decoder, embedding, output, rate=0.5)
    >>> layer(np.ones((2, 3), int), np.ones((2, 6, 8)), training=True).shape
    TensorShape([2, 3, 5])
    """

    def __init__(
        self,
        decoder,
        embedding,
        output=None,
        rate=0.0,
        dropout=0.0,
        draw=True,
        seed=None,
        **kwargs,
    ):
        super().__init__(autocast=False, **kwargs)
        self.supports_masking = True
        if not hasattr(decoder, "start_state"):
            raise ValueError(
                "`decoder` must be a decoder of keras_attention, e.g. LuongDecoder(...). "
                f"Received: {decoder!r}."
            )
        if isinstance(rate, dict):
            rate = keras.optimizers.schedules.deserialize(rate)
        scheduled = isinstance(rate, LearningRateSchedule)
        if not scheduled and not (isinstance(rate, Real) and 0 <= rate <= 1):
            raise ValueError(f"`rate` must lie in [0, 1], or be a schedule. Received: {rate!r}.")
        self.decoder, self.embedding, self.output_layer = decoder, embedding, output
        self.rate, self.draw, self.seed = rate, draw, seed
        # (A seed of its own: with that of the coins both would draw the same numbers.)
        dropout_seed = None if seed is None else seed + 1
        self.dropout = keras.layers.Dropout(dropout, seed=dropout_seed, dtype=self.dtype_policy)
        self._seed_generator = keras.random.SeedGenerator(seed)

    def build(self, tokens_shape, memory_shape):
        if not self.embedding.built:
            self.embedding.build(tokens_shape)
        embedded = self.embedding.compute_output_shape(tokens_shape)
        if not self.decoder.built:
            self.decoder.build(embedded, memory_shape)
        if self.output_layer is not None and not self.output_layer.built:
            self.output_layer.build(self.decoder.compute_output_shape(embedded, memory_shape))
        self.steps = self.add_weight(
            name="steps", shape=(), dtype="int32", initializer="zeros", trainable=False
        )
        self.built = True

    def call(
        self,
        tokens,
        memory,
        initial_state=None,
        memory_mask=None,
        mask=None,
        return_attention_scores=False,
        training=None,
    ):
        feedback = {}
        if training and (callable(self.rate) or self.rate > 0):
            feedback = {"feedback": self._next_input, "feedback_mask": self._coins(tokens)}
            self.steps.assign(self.steps + 1)
        outputs = self.decoder(
            self.dropout(self.embedding(tokens), training=training),
            memory,
            initial_state=initial_state,
            memory_mask=memory_mask,
            mask=self.embedding.compute_mask(tokens) if mask is None else mask,
            return_attention_scores=return_attention_scores,
            training=training,
            **feedback,
        )
        if not return_attention_scores:
            return self._logits(outputs, training)
        outputs, weights = outputs
        return self._logits(outputs, training), weights

    def _logits(self, outputs, training):
        outputs = self.dropout(outputs, training=training)
        if self.output_layer is None:
            return self.embedding(outputs, reverse=True)
        return self.output_layer(outputs)

    def _coins(self, tokens):
        """Which tokens `[B, T]` are replaced, as far as the decoder finds one before them."""
        rate = self.rate(self.steps) if callable(self.rate) else self.rate
        return keras.random.uniform(ops.shape(tokens), seed=self._seed_generator) < rate

    def _next_input(self, output):
        """The decoder's own next input `[B, D]` after its output `[B, U]`."""
        logits = ops.cast(self._logits(output, training=False), "float32")
        if self.draw:
            token = keras.random.categorical(logits, 1, seed=self._seed_generator)[:, 0]
        else:
            token = ops.argmax(logits, axis=-1)
        return self.dropout(self.embedding(token), training=True)

    def compute_output_spec(self, *args, **kwargs):
        return keras.Operation.compute_output_spec(self, *args, **kwargs)

    def get_config(self):
        serialize = keras.saving.serialize_keras_object
        parts = {"decoder": self.decoder, "embedding": self.embedding, "output": self.output_layer}
        own = {"rate": self.rate, "draw": self.draw, "seed": self.seed}
        own["dropout"] = self.dropout.rate
        if callable(self.rate):
            own["rate"] = keras.optimizers.schedules.serialize(self.rate)
        return {**super().get_config(), **own, **{k: serialize(x) for k, x in parts.items()}}

    @classmethod
    def from_config(cls, config, custom_objects=None):
        config = copy.deepcopy(config)  # (Keras takes the cells out of the config of a stack.)
        for name in ("decoder", "embedding", "output"):
            config[name] = keras.saving.deserialize_keras_object(
                config[name], custom_objects=custom_objects
            )
        return cls(**config)

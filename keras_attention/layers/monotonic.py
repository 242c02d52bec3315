"""Monotonic alignment as a normaliser that a layer can be given."""

import math
from numbers import Real

import keras
from keras import ops

from keras_attention.monotonic import MODES, monotonic_attention, monotonic_start


@keras.saving.register_keras_serializable(package="keras_attention")
class MonotonicAlignment(keras.layers.Layer):
    """Weights that move over the memory from its start to its end, never back.

        p_{t,s} = sigmoid(score_{t,s} + r)
        weights_{t,s} = p_{t,s} sum_{k <= s} weights_{t-1,k} prod_{k <= l < s} (1 - p_{t,l})

    [Raffel et al., 2017](https://arxiv.org/abs/1704.00784), equations 8 to 13: the expected weights
    of a process that scans the memory from where it last stopped, and stops at s with probability
    p_{t,s}. In training the expected weights are used; otherwise the process itself, which stops at
    the first s with p_{t,s} > 0.5, so that it attends to one step of the memory, or to none.

    Args:
        noise: standard deviation of the normal noise that is added to the scores in training, so
            that they learn to be far from 0 (1 in the paper).
        mode: how the expected weights are computed in training: "parallel" or "recursive", with
            the same numbers.
        hard: whether the process itself is used outside of training. If not, the expected weights.
        bias: r before training, negative so that the process does not stop too early.
        seed: integer seed of the noise.
        **kwargs: arguments of `keras.layers.Layer`.

    Call arguments:
        scores: `[B, T, S]`, T = 1.
        mask: boolean, broadcastable to the scores, True = may attend; p is 0 elsewhere.
        previous: `[B, T, S]`, the weights of the step before.
        training: whether to use the expected weights, and noise.

    Returns:
        Weights `[B, T, S]`. A row sums to at most 1: the rest is the probability that the process
        ran past the end.

    Masking:
        Masked entries are 0, a row without allowed entries is 0.

    Raises:
        ValueError: if `mode` is unknown or `noise` is not a number of at least 0.

    Example:

    >>> import numpy as np
    >>> from keras_attention import BahdanauAttention
    >>> layer = BahdanauAttention(8, normalize=True, normalizer=MonotonicAlignment())
    >>> query, memory = np.ones((2, 3, 4)), np.ones((2, 5, 6))
    >>> layer(query, memory, return_attention_scores=True)[1].shape
    TensorShape([2, 3, 5])
    """

    carries = ("previous",)

    def __init__(self, noise=1.0, mode="parallel", hard=True, bias=-1.0, seed=None, **kwargs):
        super().__init__(autocast=False, **kwargs)
        self.supports_masking = True
        if mode not in MODES or mode == "hard":
            raise ValueError(f"`mode` must be 'parallel' or 'recursive'. Received: {mode!r}.")
        if not isinstance(noise, Real) or not 0 <= noise < math.inf:
            raise ValueError(f"`noise` must be a number of at least 0. Received: {noise!r}.")
        self.noise, self.mode, self.hard, self.bias, self.seed = noise, mode, hard, bias, seed
        self._seed_generator = keras.random.SeedGenerator(seed) if noise else None

    def build(self, scores_shape):
        start = keras.initializers.Constant(self.bias)
        self.r = self.add_weight(name="r", shape=(), initializer=start)
        self.built = True

    def start(self, like, mask):
        """The weights `[B, S]` before the first step: on the first step of the memory."""
        return monotonic_start(like, mask)

    def compute_mask(self, scores, previous_mask=None):
        return None  # weights carry no mask

    def call(self, scores, mask=None, previous=None, training=None):
        return monotonic_attention(
            scores + ops.cast(self.r, scores.dtype),
            previous,
            mask=mask,
            mode=self.mode if training or not self.hard else "hard",
            noise=self.noise if training else 0.0,
            seed=self._seed_generator,
        )

    def get_config(self):
        own = {name: getattr(self, name) for name in ("noise", "mode", "hard", "bias", "seed")}
        return {**super().get_config(), **own}

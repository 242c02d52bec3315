"""Small random models to search with, as a step for the package and one for the reference."""

import keras
import numpy as np
from backend import BACKEND, tensor
from keras import ops


class Model:
    """A recurrent network with attention weights that depend on its state.

    `step(tokens [N], state [N, H])` gives logits `[N, V]` and weights `[N, S]`;
    `reference_step(token, state [H])` the same for one sample, in float64.
    """

    def __init__(self, seed, V=5, H=4, S=3, end=None, end_bias=0.0, sharpness=2.0):
        rng = np.random.default_rng(seed)
        self.V, self.H, self.S = V, H, S
        self.embed, self.recurrent = rng.normal(size=(V, H)), rng.normal(size=(H, H))
        self.output = sharpness * rng.normal(size=(H, V))
        self.attention = 2 * rng.normal(size=(H, S))
        self.bias = np.zeros(V)
        if end is not None:
            self.bias[end] = end_bias

    def draw(self, rng, batch):
        """States `[B, H]` in float32 and start tokens `[B]`."""
        return rng.normal(size=(batch, self.H)).astype("float32"), rng.integers(0, self.V, batch)

    def step(self, tokens, state):
        embed, recurrent, output, attention, bias = (
            tensor(x, "float32")
            for x in (self.embed, self.recurrent, self.output, self.attention, self.bias)
        )
        new = ops.tanh(ops.take(embed, tokens, axis=0) + ops.matmul(state, recurrent))
        return ops.matmul(new, output) + bias, ops.softmax(ops.matmul(new, attention)), new

    def step_without_weights(self, tokens, state):
        logits, _, state = self.step(tokens, state)
        return logits, state

    def reference_step(self, token, state):
        new = np.tanh(self.embed[token] + np.asarray(state, "float64") @ self.recurrent)
        scores = new @ self.attention
        weights = np.exp(scores - scores.max())
        return new @ self.output + self.bias, new, weights / weights.sum()


def distribution(probabilities):
    """A step that always gives the same distribution, of an `[V]` or, by row, `[N, V]` array."""
    with np.errstate(divide="ignore"):
        logits = tensor(np.log(np.array(probabilities, "float64")), "float32")

    def step(tokens, state):
        return logits + ops.zeros((ops.shape(tokens)[0], 1)), state

    return step


def counting(step):
    """The step, and a variable that counts how often it is called."""
    calls = keras.Variable(0, dtype="int32", trainable=False)

    def counted(*args):
        if BACKEND != "jax":  # which traces a loop's steps once
            calls.assign_add(1)
        return step(*args)

    return counted, calls

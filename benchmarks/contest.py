"""Contests: two functions of `(query, value)` that take turns in one process.

Absolute times depend on the machine and on what else it does; what two functions that take turns
differ by depends on it much less. So the figure to look at is the ratio: the median, over the
rounds, of our time divided by the peer's time in the same round. Below 1 we are faster.
"""

import random
import statistics
import sys
import time
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from keras_attention.attend import weighted_sum
from keras_attention.normalizers import masked_softmax
from keras_attention.pairs import Pairs
from keras_attention.scores import DotProduct, scaled_dot_score


class Contest(NamedTuple):
    """Two functions of `(query, value)` that should return the same context.

    Each is a Keras model or has the methods `forward` and `forward_and_backward` of those two.
    `apart` is how far the two may be apart, None for any distance; `operations` the floating-point
    operations of a forward pass, where they say something; `backward` whether it is timed.
    """

    name: str
    peer: str
    shape: str
    ours: Any
    theirs: Any
    inputs: list
    apart: float | None = 1e-3
    operations: float = 0.0
    backward: bool = True


class Result(NamedTuple):
    contest: Contest
    passes: str
    ours_ms: float
    theirs_ms: float
    ratio: float
    difference: float


def model(query, value, context):
    return keras.Model([query, value], context)


def random_inputs(batch, query_steps, key_steps, features):
    return random_tensors((batch, query_steps, features), (batch, key_steps, features))


def random_tensors(*shapes):
    rng = np.random.default_rng(0)
    return [tf.constant(rng.normal(size=shape), "float32") for shape in shapes]


def symbolic(inputs):
    return [keras.Input(tensor.shape[1:]) for tensor in inputs]


class DotAttention(keras.layers.Layer):
    """Attention `[B, N, T, H]` without projections, as our layers compute it."""

    def __init__(self, causal=False, window=None):
        super().__init__()
        self.pairs = Pairs(causal=causal, window=window)

    def call(self, query, value):
        product = DotProduct(query.shape[-1] ** -0.5)
        pairs = self.pairs._replace(sizes=(query.shape[-2], value.shape[-2]))
        functions = scaled_dot_score, pairs, masked_softmax
        return weighted_sum(query, value, value, *functions, 0.0, None, False, product)


def dot_attention(inputs, causal=False, window=None):
    query, value = symbolic(inputs)
    return model(query, value, DotAttention(causal, window)(query, value))


def forward(network):
    if not isinstance(network, keras.Model):
        return network.forward
    return tf.function(lambda query, value: network([query, value], training=True))


def forward_and_backward(network):
    if not isinstance(network, keras.Model):
        return network.forward_and_backward

    def gradients(query, value):
        with tf.GradientTape() as tape:
            tape.watch([query, value])
            loss = tf.reduce_sum(tf.square(network([query, value], training=True)))
        return tape.gradient(loss, [query, value, *network.trainable_weights])

    return tf.function(gradients)


def milliseconds(function, inputs):
    start = time.perf_counter()
    result = function(*inputs)
    tf.nest.map_structure(lambda tensor: tensor.numpy(), result)  # The work is done, not queued.
    return 1000 * (time.perf_counter() - start)


def take_turns(functions, inputs, rounds):
    """Times `[rounds, len(functions)]`; who goes first is drawn anew each round."""
    for function in functions:
        for _ in range(2):  # Traces, then fills the caches.
            milliseconds(function, inputs)
    order, times = list(range(len(functions))), []
    for _ in range(rounds):
        random.shuffle(order)
        measured = {index: milliseconds(functions[index], inputs) for index in order}
        times.append([measured[index] for index in range(len(functions))])
    return times


def difference(contest):
    models = contest.ours, contest.theirs
    ours, theirs = (np.asarray(forward(network)(*contest.inputs), "float32") for network in models)
    return float(np.max(np.abs(ours - theirs)))


def compare(contest, rounds):
    gap = difference(contest) if contest.apart is not None else float("nan")
    if contest.apart is not None and not gap < contest.apart:
        sys.exit(f"{contest.name} and {contest.peer} differ by {gap:.2g}: not the same thing")
    makers = [("forward", forward), ("forward, backward", forward_and_backward)]
    for passes, make in makers if contest.backward else makers[:1]:
        functions = [make(contest.ours), make(contest.theirs)]
        times = take_turns(functions, contest.inputs, rounds)
        ours, theirs = zip(*times, strict=True)
        ratio = statistics.median(own / other for own, other in times)
        medians = statistics.median(ours), statistics.median(theirs)
        yield Result(contest, passes, *medians, ratio, gap)


HEADER = """\
| ours | peer | shape | passes | ours, ms | peer, ms | ratio | of peak | apart |
| --- | --- | --- | --- | ---: | ---: | ---: | ---: | ---: |"""


def row(result, peak):
    contest = result.contest
    words = f"| {contest.name} | {contest.peer} | {contest.shape} | {result.passes} "
    times = f"| {result.ours_ms:.2f} | {result.theirs_ms:.2f} | {result.ratio:.2f} "
    done = contest.operations * (3 if "backward" in result.passes else 1)
    share = f"{done / (1e-3 * result.ours_ms) / peak:.2f}" if done else ""
    apart = "" if contest.apart is None else f"{result.difference:.0e}"
    return words + times + f"| {share} | {apart} |"

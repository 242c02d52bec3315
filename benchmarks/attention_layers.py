"""Times attention layers against those of other libraries, in one process, taking turns.

The peers are `keras.layers`, and PyTorch and keras-hub where they are installed. Both sides hold
the same weights, and their outputs are compared before anything is timed. See contest.py.
"""

import argparse
import itertools
import os
import statistics

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import other_libraries
import tensorflow as tf
from contest import (
    HEADER,
    Contest,
    compare,
    dot_attention,
    model,
    random_inputs,
    random_tensors,
    row,
    symbolic,
    take_turns,
)
from step_loops import positive

import keras_attention


def multi_head(batch, steps, heads=8, features=512, causal=False):
    inputs = random_inputs(batch, steps, steps, features)
    models = [
        attending_to_itself(library.MultiHeadAttention(heads, features // heads), inputs, causal)
        for library in (keras_attention, keras.layers)
    ]
    models[1].set_weights(models[0].get_weights())
    name = "MultiHeadAttention" + (", causal" if causal else "")
    shape = f"{batch} x {steps}, {heads} heads, {features} features"
    pairs = steps * steps / (2 if causal else 1)
    operations = batch * (8 * steps * features**2 + 4 * pairs * features)
    peer = "keras MultiHeadAttention"
    return Contest(name, peer, shape, *models, inputs, operations=operations)


def attending_to_itself(layer, inputs, causal=False):
    query, value = symbolic(inputs)
    return model(query, value, layer(query, value, use_causal_mask=causal))


def grouped_query(batch, steps, heads=8, groups=2, features=512):
    inputs = random_inputs(batch, steps, steps, features)
    size = features // heads
    ours = keras_attention.MultiHeadAttention(heads, size, num_key_value_heads=groups)
    theirs = keras.layers.GroupQueryAttention(size, heads, groups)
    models = [attending_to_itself(layer, inputs) for layer in (ours, theirs)]
    models[1].set_weights(models[0].get_weights())
    shape = f"{batch} x {steps}, {heads} heads, {groups} of keys, {features} features"
    return Contest(
        "MultiHeadAttention, grouped", "keras GroupQueryAttention", shape, *models, inputs
    )


def in_bfloat16(batch, steps, heads=8, features=512):
    inputs = random_inputs(batch, steps, steps, features)
    models = [
        attending_to_itself(
            keras_attention.MultiHeadAttention(heads, features // heads, dtype=dtype), inputs
        )
        for dtype in ("mixed_bfloat16", "float32")
    ]
    models[1].set_weights(models[0].get_weights())
    shape = f"{batch} x {steps}, {heads} heads, {features} features"
    return Contest(
        "MultiHeadAttention, mixed_bfloat16", "the same, float32", shape, *models, inputs, 0.1
    )


def with_window(batch, steps, window, heads=8, features=512):
    inputs = random_inputs(batch, steps, steps, features)
    models = [
        attending_to_itself(
            keras_attention.MultiHeadAttention(heads, features // heads, sliding_window=size),
            inputs,
            causal=True,
        )
        for size in (window, None)
    ]
    shape = f"{batch} x {steps}, {heads} heads, {features} features"
    name = f"MultiHeadAttention, causal, window {window}"
    return Contest(name, "the same without the window", shape, *models, inputs, None)


def window_alone(batch, steps, window, heads=8, size=64):
    inputs = random_tensors(*[(batch, heads, steps, size)] * 2)
    models = [dot_attention(inputs, True, w) for w in (window, None)]
    shape = f"{batch} x {steps}, {heads} heads of {size}"
    name = f"attention alone, causal, window {window}"
    return Contest(name, "the same without the window", shape, *models, inputs, None)


def packed(batch, steps, documents, heads=8, features=512):
    inputs = random_inputs(batch, steps, steps, features)
    ids = np.arange(steps) // (steps // documents)
    mask = keras_attention.segment_mask(np.stack([ids] * batch))
    models = []
    for options in ({"attention_mask": mask}, {}):
        query, value = symbolic(inputs)
        layer = keras_attention.MultiHeadAttention(heads, features // heads)
        models.append(model(query, value, layer(query, value, **options)))
    shape = f"{batch} x {steps}, {heads} heads, {features} features"
    name = f"MultiHeadAttention, {documents} packed documents"
    return Contest(name, "the same without the mask", shape, *models, inputs, None)


def bahdanau(batch, steps, units=256):
    """Keras's AdditiveAttention projects nothing: the peer gets its projections as two `Dense`."""
    inputs = random_inputs(batch, steps, steps, units)
    query, value = symbolic(inputs)
    attention = keras_attention.BahdanauAttention(units)
    ours = model(query, value, attention(query, value))
    projections = [keras.layers.Dense(units, use_bias=False) for _ in range(2)]
    query, value = symbolic(inputs)
    additive = keras.layers.AdditiveAttention()
    theirs = model(query, value, additive([projections[0](query), value, projections[1](value)]))
    projections[0].set_weights(attention.query_projection.get_weights())
    projections[1].set_weights(attention.key_projection.get_weights())
    additive.set_weights([keras.ops.reshape(attention.v, (-1,))])
    peer, shape = "two Dense, keras AdditiveAttention", f"{batch} x {steps}, {units} units"
    return Contest("BahdanauAttention", peer, shape, ours, theirs, inputs)


def luong(batch, steps, features=256):
    inputs = random_inputs(batch, steps, steps, features)
    query, value = symbolic(inputs)
    ours = model(query, value, keras_attention.LuongAttention("dot")(query, value))
    query, value = symbolic(inputs)
    theirs = model(query, value, keras.layers.Attention()([query, value]))
    shape = f"{batch} x {steps}, {features} features"
    return Contest('LuongAttention("dot")', "keras Attention", shape, ours, theirs, inputs)


class AttendingCell(keras.layers.Layer):
    """Bahdanau's decoder as a cell for `keras.layers.RNN`: attention, then a GRU.

    `memory` and `keys`, the memory projected, are told before the loop begins.
    """

    def __init__(self, units):
        super().__init__()
        self.gru = keras.layers.GRUCell(units)
        self.query, self.score = (keras.layers.Dense(n, use_bias=False) for n in (units, 1))
        self.state_size = self.output_size = units
        self.memory = self.keys = None

    def call(self, inputs, states, training=None):
        hidden = keras.ops.tanh(self.query(states[0])[:, None] + self.keys)
        weights = keras.ops.softmax(self.score(hidden), axis=1)
        context = keras.ops.sum(weights * self.memory, axis=1)
        return self.gru(keras.ops.concatenate([inputs, context], -1), states, training=training)


class PlainDecoder(keras.Model):
    """The decoder with what Keras has."""

    def __init__(self, units):
        super().__init__()
        self.cell = AttendingCell(units)
        self.rnn = keras.layers.RNN(self.cell, return_sequences=True)
        self.key = keras.layers.Dense(units, use_bias=False)

    def call(self, inputs, training=None):
        steps, memory = inputs
        self.cell.memory, self.cell.keys = memory, self.key(memory)
        return self.rnn(steps, training=training)


def recurrent(batch, steps, key_steps, units=256):
    inputs = random_inputs(batch, steps, key_steps, units)
    attention = keras_attention.BahdanauAttention(units)
    decoder = keras_attention.BahdanauDecoder(keras.layers.GRUCell(units), attention)
    query, value = symbolic(inputs)
    ours, theirs = model(query, value, decoder(query, value)), PlainDecoder(units)
    theirs(inputs)
    theirs.cell.gru.set_weights(decoder.cell.get_weights())
    theirs.cell.query.set_weights(attention.query_projection.get_weights())
    theirs.key.set_weights(attention.key_projection.get_weights())
    theirs.cell.score.set_weights([keras.ops.reshape(attention.v, (-1, 1))])
    shape = f"{batch} x {steps}, {key_steps} keys, {units} units"
    return Contest(
        "BahdanauDecoder, GRU", "keras RNN over a cell that attends", shape, ours, theirs, inputs
    )


def contests(quick):
    if quick:
        yield lambda: multi_head(2, 16, heads=2, features=32)
        yield lambda: grouped_query(2, 16, heads=2, groups=1, features=32)
        yield lambda: bahdanau(2, 8, units=16)
        yield lambda: luong(2, 8, features=16)
        yield lambda: recurrent(2, 5, 7, units=16)
        return
    yield lambda: multi_head(32, 128)
    yield lambda: multi_head(8, 512)
    yield lambda: multi_head(8, 512, causal=True)
    yield lambda: multi_head(2, 2048)
    yield lambda: multi_head(2, 2048, causal=True)
    yield lambda: grouped_query(2, 2048)
    yield lambda: in_bfloat16(2, 2048)
    yield lambda: window_alone(1, 16384, 256)
    yield lambda: with_window(1, 16384, 256)
    yield lambda: packed(1, 8192, 16)
    yield lambda: bahdanau(32, 32)
    yield lambda: bahdanau(32, 64)
    yield lambda: bahdanau(32, 256)
    yield lambda: luong(32, 128)
    yield lambda: luong(8, 512)
    yield lambda: recurrent(32, 20, 30)


def product_speed(rounds):
    """Floating-point operations a second of a product of two 2048 x 2048 matrices."""
    matrix = tf.random.normal((2048, 2048))
    multiply = tf.function(lambda a, b: a @ b)
    times = take_turns([multiply], [matrix, matrix], rounds)
    return 2 * 2048**3 / statistics.median(1e-3 * time for (time,) in times)


def section(quick, rounds):
    """The table, as Markdown."""
    peak = product_speed(rounds)
    lines = [f"Products of two 2048 x 2048 matrices: {peak / 1e9:.0f} GFLOP/s.", "", HEADER]
    print("\n".join(lines))
    for make_contest in itertools.chain(contests(quick), other_libraries.contests(quick)):
        for result in compare(make_contest(), rounds):
            lines.append(row(result, peak))
            print(lines[-1], flush=True)
    lines += ["", other_libraries.left_out()]
    return "\n".join(lines).rstrip()


def main():
    first, _, rest = __doc__.partition("\n\n")
    parser = argparse.ArgumentParser(description=first, epilog=rest)
    parser.add_argument("--quick", action="store_true", help="tiny shapes")
    parser.add_argument("--rounds", type=positive, default=7, help="(default: %(default)s)")
    arguments = parser.parse_args()
    section(arguments.quick, arguments.rounds)


if __name__ == "__main__":
    main()

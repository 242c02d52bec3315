"""Times a decoder's step loop with the products of the inputs hoisted, against the plain cell.

The loop is what an attention decoder runs: in each of T steps a cell gets `[x_t; e_t]`, the inputs
x_t known before the loop and e_t (the context) only inside; here e_t = tanh(V h). "Plain" joins
the two and calls the Keras cell, "hoisted" is `keras_attention.decoders.gates.hoist`.

The two take turns, and their outputs and gradients are compared before anything is timed. The
ratio is the median, over the rounds, of the hoisted loop's time divided by that of the plain one
in the same round: below 1 hoisting is faster. It is given for the time on the clock and for the
processor time of all threads, which other work on the machine disturbs less.
"""

import argparse
import os
import random
import sys
import time
from typing import NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from keras_attention.decoders.gates import hoist
from keras_attention.loops import scan_steps

CELLS = {
    "gru": keras.layers.GRUCell,
    "gru, reset before": lambda units: keras.layers.GRUCell(units, reset_after=False),
    "lstm": keras.layers.LSTMCell,
    "simple rnn": keras.layers.SimpleRNNCell,
}


class Sizes(NamedTuple):
    batch: int
    steps: int
    inputs: int
    extra: int
    units: int


class Loops:
    """The two loops over one cell."""

    def __init__(self, cell, sizes):
        self.sizes, self.cell = sizes, CELLS[cell](sizes.units)
        self.cell.build((None, sizes.inputs + sizes.extra))
        rng = np.random.default_rng(0)
        self.inputs = tf.constant(rng.normal(size=sizes[:3]), "float32")
        scale = sizes.units**-0.5
        context = rng.normal(size=(sizes.units, sizes.extra), scale=scale)
        self.context = tf.constant(context, "float32")

    def extra(self, state):
        return ops.tanh(ops.matmul(state[0], self.context))

    def run(self, step, inputs):
        state = self.cell.get_initial_state(tf.shape(inputs)[0])
        outputs = [((None, self.sizes.units), "float32")]
        return scan_steps(step, inputs, list(state), outputs)[0][0]

    def plain(self, inputs):
        def step(x, state):
            output, state = self.cell(ops.concatenate([x, self.extra(state)], axis=-1), state)
            return [output], list(state)

        return self.run(step, inputs)

    def hoisted(self, inputs):
        gates = hoist(self.cell, self.sizes.inputs)

        def step(projected, state):
            output, state = gates.step(projected, self.extra(state), state)
            return [output], state

        return self.run(step, gates.project(inputs))


def forward(loop, cell, jit):
    return tf.function(loop, jit_compile=jit)


def forward_and_backward(loop, cell, jit):
    def gradients(inputs):
        weights = [weight.value for weight in cell.trainable_weights]
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            loss = tf.reduce_sum(tf.square(loop(inputs)))
        return tape.gradient(loss, [inputs, *weights])

    return tf.function(gradients, jit_compile=jit)


PASSES = {"forward": forward, "forward, backward": forward_and_backward}


def milliseconds(function, inputs):
    """Time on the clock and of the processor, until the results are there."""
    clock, processor = time.perf_counter(), time.process_time()
    tf.nest.map_structure(lambda tensor: tensor.numpy(), function(inputs))
    return 1000 * (time.perf_counter() - clock), 1000 * (time.process_time() - processor)


def take_turns(functions, inputs, rounds):
    """Times `[rounds, len(functions), 2]`; who goes first is drawn anew each round."""
    for function in functions:
        milliseconds(function, inputs)  # Traces; the comparison before has filled the caches.
    order, times = list(range(len(functions))), []
    for _ in range(rounds):
        random.shuffle(order)
        measured = {index: milliseconds(functions[index], inputs) for index in order}
        times.append([measured[index] for index in range(len(functions))])
    return np.array(times)


def largest_difference(functions, inputs):
    """Between the results of two functions, relative to the largest of the first's entries."""
    first, second = (tf.nest.flatten(function(inputs)) for function in functions)
    return max(
        float(tf.reduce_max(tf.abs(a - b)) / tf.reduce_max(tf.abs(a)))
        for a, b in zip(first, second, strict=True)
    )


HEADER = """\
| cell | batch | passes | compiled | plain, ms | hoisted, ms | ratio | processor | difference |
| --- | ---: | --- | --- | ---: | ---: | ---: | ---: | ---: |"""


def row(cell, sizes, passes, jit, rounds):
    loops = Loops(cell, sizes)
    functions = [PASSES[passes](loop, loops.cell, jit) for loop in (loops.plain, loops.hoisted)]
    difference = largest_difference(functions, loops.inputs)
    if not difference < 1e-4:
        sys.exit(f"{cell}: the loops differ by {difference:.2g}: not the same thing")
    times = take_turns(functions, loops.inputs, rounds)
    plain, hoisted = np.median(times[..., 0], axis=0)
    clock, processor = np.median(times[:, 1] / times[:, 0], axis=0)
    words = f"| {cell} | {sizes.batch} | {passes} | {'XLA' if jit else 'graph'} "
    return (
        words
        + f"| {plain:.1f} | {hoisted:.1f} | {clock:.2f} | {processor:.2f} | {difference:.0e} |"
    )


def positive(text):
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {number}")
    return number


def parse_arguments():
    first, _, rest = __doc__.partition("\n\n")
    parser = argparse.ArgumentParser(description=first, epilog=rest)
    parser.add_argument("--quick", action="store_true", help="tiny sizes, a few rounds")
    parser.add_argument("--rounds", type=positive, help="rounds (default: 25, quick 3)")
    parser.add_argument("--cells", nargs="+", choices=list(CELLS), default=list(CELLS))
    parser.add_argument("--batches", nargs="+", type=positive, default=[4, 64], help="batch sizes")
    parser.add_argument("--steps", type=positive, default=25, help="T")
    parser.add_argument("--inputs", type=positive, default=256, help="features of x_t")
    parser.add_argument("--extra", type=positive, default=512, help="features of e_t")
    parser.add_argument("--units", type=positive, default=256, help="units of the cell")
    arguments = parser.parse_args()
    arguments.rounds = arguments.rounds or (3 if arguments.quick else 25)
    return arguments


def main():
    arguments = parse_arguments()
    sizes = [arguments.steps, arguments.inputs, arguments.extra, arguments.units]
    if arguments.quick:
        arguments.batches, sizes = [2], [4, 8, 16, 8]
    names = ("T", "inputs", "extra", "units")
    print(", ".join(f"{name} {size}" for name, size in zip(names, sizes, strict=True)))
    print(HEADER)
    for cell in arguments.cells:
        for batch in arguments.batches:
            for jit in (False, True):
                for passes in PASSES:
                    print(
                        row(cell, Sizes(batch, *sizes), passes, jit, arguments.rounds), flush=True
                    )


if __name__ == "__main__":
    main()

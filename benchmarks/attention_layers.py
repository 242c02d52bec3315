"""Times our attention layers against those of Keras, in one process, taking turns.

Absolute times depend on the machine and on what else it does; what two functions that take turns
differ by depends on it much less. So the figure to look at is the ratio: the median, over the
rounds, of our time divided by the peer's time in the same round. Below 1 we are faster.

Both sides hold the same weights, and their outputs are compared before anything is timed.
"""

import argparse
import datetime
import os
import platform
import random
import shlex
import statistics
import sys
import time
from pathlib import Path
from typing import NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf

import keras_attention

REPORT = Path(__file__).parents[1] / "docs" / "performance.md"


class Contest(NamedTuple):
    """Two functions of `(query, value)` that should return the same context."""

    name: str
    peer: str
    shape: str
    ours: keras.Model
    theirs: keras.Model
    inputs: list


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
    rng = np.random.default_rng(0)
    shapes = (batch, query_steps, features), (batch, key_steps, features)
    return [tf.constant(rng.normal(size=shape), "float32") for shape in shapes]


def symbolic(inputs):
    return [keras.Input(tensor.shape[1:]) for tensor in inputs]


def multi_head(batch, steps, heads=8, features=512, causal=False):
    inputs = random_inputs(batch, steps, steps, features)
    models = []
    for layer_class in (keras_attention.MultiHeadAttention, keras.layers.MultiHeadAttention):
        query, value = symbolic(inputs)
        layer = layer_class(heads, features // heads)
        models.append(model(query, value, layer(query, value, use_causal_mask=causal)))
    models[1].set_weights(models[0].get_weights())
    name = "MultiHeadAttention" + (", causal" if causal else "")
    shape = f"{batch} x {steps}, {heads} heads, {features} features"
    return Contest(name, "MultiHeadAttention", shape, *models, inputs)


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
    peer, shape = "Dense, Dense, AdditiveAttention", f"{batch} x {steps}, {units} units"
    return Contest("BahdanauAttention", peer, shape, ours, theirs, inputs)


def luong(batch, steps, features=256):
    inputs = random_inputs(batch, steps, steps, features)
    query, value = symbolic(inputs)
    ours = model(query, value, keras_attention.LuongAttention("dot")(query, value))
    query, value = symbolic(inputs)
    theirs = model(query, value, keras.layers.Attention()([query, value]))
    shape = f"{batch} x {steps}, {features} features"
    return Contest('LuongAttention("dot")', "Attention", shape, ours, theirs, inputs)


def contests(quick):
    if quick:
        yield lambda: multi_head(2, 16, heads=2, features=32)
        yield lambda: bahdanau(2, 8, units=16)
        yield lambda: luong(2, 8, features=16)
        return
    yield lambda: multi_head(32, 128)
    yield lambda: multi_head(8, 512)
    yield lambda: multi_head(8, 512, causal=True)
    yield lambda: multi_head(2, 2048)
    yield lambda: multi_head(2, 2048, causal=True)
    yield lambda: bahdanau(32, 64)
    yield lambda: bahdanau(32, 128)
    yield lambda: luong(32, 128)
    yield lambda: luong(8, 512)


def forward(network):
    return tf.function(lambda query, value: network([query, value], training=True))


def forward_and_backward(network):
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
    ours, theirs = contest.ours(contest.inputs), contest.theirs(contest.inputs)
    return float(tf.reduce_max(tf.abs(ours - theirs)))


def compare(contest, rounds):
    gap = difference(contest)
    if not gap < 1e-3:
        sys.exit(f"{contest.name} and {contest.peer} differ by {gap:.2g}: not the same thing")
    for passes, make in (("forward", forward), ("forward, backward", forward_and_backward)):
        functions = [make(contest.ours), make(contest.theirs)]
        times = take_turns(functions, contest.inputs, rounds)
        ours, theirs = zip(*times, strict=True)
        ratio = statistics.median(own / other for own, other in times)
        medians = statistics.median(ours), statistics.median(theirs)
        yield Result(contest, passes, *medians, ratio, gap)


HEADER = """\
| ours | Keras | shape | passes | ours, ms | Keras, ms | ratio | largest difference |
| --- | --- | --- | --- | ---: | ---: | ---: | ---: |"""


def row(result):
    contest = result.contest
    words = f"| {contest.name} | {contest.peer} | {contest.shape} | {result.passes} "
    times = f"| {result.ours_ms:.2f} | {result.theirs_ms:.2f} | {result.ratio:.2f} "
    return words + times + f"| {result.difference:.1e} |"


def processor():
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def surroundings(rounds):
    command = shlex.join(["python", "benchmarks/attention_layers.py", *sys.argv[1:]])
    devices = [device.device_type for device in tf.config.list_physical_devices()]
    return f"""\
- Command: `{command}`, {rounds} rounds, on {datetime.date.today()}
- Machine: {os.cpu_count()} cores of {processor()}, {platform.system()}; TensorFlow sees \
{", ".join(devices)}
- Versions: keras_attention {keras_attention.__version__}, Keras {keras.version()}, \
TensorFlow {tf.__version__}, NumPy {np.__version__}, Python {platform.python_version()}"""


def report(rows, rounds):
    return f"""\
# Speed of the attention layers

Our layers against those of Keras, written by `benchmarks/attention_layers.py`. The two hold the
same weights and take turns in one process, in float32 and inside `tf.function`. Times are medians;
the ratio is the median of our time divided by Keras's in the same round, so that below 1 ours is
faster. The last column is how far the two outputs are apart at most.

{surroundings(rounds)}

{chr(10).join([HEADER, *rows])}
"""


def write_whole(path, text):
    """The file appears complete or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    try:
        temporary.write_text(text, "utf-8")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def positive(text):
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {number}")
    return number


def parse_arguments():
    first, _, rest = __doc__.partition("\n\n")
    parser = argparse.ArgumentParser(description=first, epilog=rest)
    parser.add_argument("--quick", action="store_true", help="tiny shapes, a few rounds, no file")
    parser.add_argument("--rounds", type=positive, help="rounds (default: 11, quick 3)")
    parser.add_argument("--output", type=Path, help=f"report (default: {REPORT.name} in docs/)")
    arguments = parser.parse_args()
    arguments.rounds = arguments.rounds or (3 if arguments.quick else 11)
    if arguments.output is None and not arguments.quick:
        arguments.output = REPORT
    return arguments


def main():
    arguments = parse_arguments()
    rows = []
    print(HEADER)
    for make_contest in contests(arguments.quick):
        for result in compare(make_contest(), arguments.rounds):
            rows.append(row(result))
            print(rows[-1], flush=True)
    if arguments.output:
        write_whole(arguments.output, report(rows, arguments.rounds))
        print(f"Written to {arguments.output}")


if __name__ == "__main__":
    main()

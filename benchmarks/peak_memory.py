"""Time and peak memory of attention layers at growing lengths, each case in a fresh process.

Peak memory is what the process held at most during the first call, less what it held before, when
a small call had warmed up the libraries: inputs, graph and results included. Linux only.
"""

import argparse
import functools
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
SECONDS = 300  # what takes longer is given up
# Megabytes that ours may take, by layer, batch, length and whether there is a backward pass. All
# scores at once would be 268 to 34,360 of them.
LIMITS = {
    ("multi_head", 2, 2048, True): 240,
    ("multi_head", 1, 8192, False): 300,
    ("multi_head", 1, 8192, True): 500,
    ("multi_head", 1, 32768, True): 2000,
    ("multi_head", 1, 16384, False): 600,
    ("additive", 32, 256, True): 210,
}


class Case(NamedTuple):
    """A layer of 512 features and 8 heads, or an additive one of 256 units."""

    package: str  # "keras_attention" or "keras"
    layer: str  # "multi_head" or "additive"
    batch: int
    steps: int
    causal: bool = False
    backward: bool = False
    window: int | None = None


class Measured(NamedTuple):
    megabytes: float
    first_seconds: float
    seconds: float


def cases(quick):
    """The cases of the table; what Keras would need more than 16 GB for is left out."""
    if quick:
        yield from (Case(package, "multi_head", 1, 64) for package in ("keras_attention", "keras"))
        return
    both = ("keras", "keras_attention")
    for causal in (False, True):
        yield from (Case(package, "multi_head", 2, 2048, causal, True) for package in both)
    for causal in (False, True):
        yield from (Case(package, "multi_head", 1, 8192, causal) for package in both)
    for causal in (False, True):
        yield Case("keras_attention", "multi_head", 1, 8192, causal, True)
    yield Case("keras_attention", "multi_head", 1, 32768, True, True)
    yield Case("keras_attention", "multi_head", 1, 16384, True)
    yield Case("keras_attention", "multi_head", 1, 16384, True, window=256)
    yield from (Case(package, "additive", 32, 256, backward=True) for package in both)


def growing(quick):
    """Causal self-attention, forward and backward, for the picture."""
    for steps in (16, 32) if quick else (128, 512, 2048, 8192, 32768):
        yield Case("keras_attention", "multi_head", 1, steps, True, True)
        if steps <= 2048:
            yield Case("keras", "multi_head", 1, steps, True, True)


def complaints(quick):
    """What is wrong with the memory that our layers took, a line a case."""
    for case in cases(quick):
        if case.package == "keras_attention" and not quick:
            limit = LIMITS[case.layer, case.batch, case.steps, case.backward]
            measured = measure(case)
            if measured is None or measured.megabytes > limit:
                yield f"{row(case, measured, None)}: at most {limit} MB are expected"


@functools.cache
def measure(case):
    """The case in a process of its own; None if it fails or takes too long."""
    command = [sys.executable, __file__, "--case", json.dumps(case)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return None
    if done.returncode:
        print(done.stderr[-2000:], file=sys.stderr)
        return None
    return Measured(**json.loads(done.stdout.splitlines()[-1]))


def run(case):
    """Builds, warms up and measures one case in this process."""
    import numpy as np
    import tensorflow as tf

    features = 256 if case.layer == "additive" else 512
    layer, attend = make_layer(case, features)

    def compute(x):
        if not case.backward:
            return attend(x)
        with tf.GradientTape() as tape:
            tape.watch(x)
            total = tf.reduce_sum(tf.square(attend(x)))
        return tape.gradient(total, [x, *layer.trainable_weights])

    def call(x):
        started = time.perf_counter()
        tf.nest.map_structure(lambda y: y.numpy(), function(x))
        return time.perf_counter() - started

    function = tf.function(compute, autograph=False)
    rng = np.random.default_rng(0)
    call(tf.constant(rng.normal(size=(1, 64, features)), "float32"))
    before = kilobytes("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    x = tf.constant(rng.normal(size=(case.batch, case.steps, features)).astype("float32"))
    first = call(x)
    peak = kilobytes("VmHWM") - before
    later = [call(x)]
    while len(later) < 3 and sum(later) < 20:
        later.append(call(x))
    return Measured(peak / 1024, first, min(later))


def make_layer(case, features):
    """The layer, and a function that attends from its argument to itself."""
    import keras

    import keras_attention

    ours = case.package == "keras_attention"
    if case.layer == "additive":
        layer = keras_attention.BahdanauAttention(features)
        if not ours:
            layer = keras.layers.AdditiveAttention()
        return layer, lambda x: layer(x, x) if ours else layer([x, x])
    window = {} if case.window is None else {"sliding_window": case.window}
    package = keras_attention if ours else keras.layers
    layer = package.MultiHeadAttention(8, features // 8, **window)
    return layer, lambda x: layer(x, x, use_causal_mask=case.causal)


def kilobytes(name):
    """A number from the kernel's account of this process."""
    for line in Path("/proc/self/status").read_text("utf-8").splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1])
    raise OSError(f"/proc/self/status has no {name}")


HEADER = """\
| layer | package | shape | passes | peak, MB | of Keras | first call, s | later calls, s |
| --- | --- | --- | --- | ---: | ---: | ---: | ---: |"""


def row(case, measured, peer):
    """A line of the table; `peer` is what Keras needed, or None."""
    layer = case.layer.replace("_", "-") + (", causal" if case.causal else "")
    layer += "" if case.window is None else f", window {case.window}"
    passes = "forward, backward" if case.backward else "forward"
    words = f"| {layer} | {case.package} | {case.batch} x {case.steps} | {passes} "
    if measured is None:
        return words + f"| failed, or took more than {SECONDS} s | | | |"
    part = "" if peer is None else f"1/{peer.megabytes / max(1, measured.megabytes):.1f}"
    numbers = f"| {measured.megabytes:.0f} | {part} | {measured.first_seconds:.2f} "
    return words + numbers + f"| {measured.seconds:.3f} |"


def section(quick):
    """The table, as Markdown."""
    lines, keras_needs = [HEADER], {}
    print(HEADER)
    for case in cases(quick):
        measured, key = measure(case), case._replace(package="keras")
        if case.package == "keras":
            keras_needs[key] = measured
        peer = keras_needs.get(key) if case.package != "keras" else None
        lines.append(row(case, measured, peer))
        print(lines[-1], flush=True)
    return "\n".join(lines)


def draw(path, quick):
    """The picture of time and memory by length; returns the numbers as a Markdown table."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    found = [(case, measured) for case in growing(quick) if (measured := measure(case))]
    figure, axes = pyplot.subplots(1, 2, figsize=(10, 4), layout="constrained")
    labels = (("seconds", "seconds"), ("megabytes", "peak memory, MB"))
    for axis, (name, label) in zip(axes, labels, strict=True):
        for package in ("keras_attention", "keras"):
            ours = [(c.steps, getattr(m, name)) for c, m in found if c.package == package]
            axis.loglog(*zip(*ours, strict=True), marker="o", base=2, label=package)
        axis.set(xlabel="length", ylabel=label)
        axis.grid(alpha=0.3)
        axis.legend()
    figure.savefig(path, dpi=90)
    pyplot.close(figure)
    lines = [HEADER, *(row(case, measured, None) for case, measured in found)]
    print("\n".join(lines))
    return "\n".join(lines)


def main():
    first, _, rest = __doc__.partition("\n\n")
    parser = argparse.ArgumentParser(description=first, epilog=rest)
    parser.add_argument("--quick", action="store_true", help="tiny shapes")
    parser.add_argument("--case", help="measure this one here (JSON of a Case), print JSON")
    arguments = parser.parse_args()
    if arguments.case:
        print(json.dumps(run(Case(*json.loads(arguments.case)))._asdict()))
    else:
        section(arguments.quick)
        if wrong := list(complaints(arguments.quick)):
            sys.exit("\n".join(wrong))


if __name__ == "__main__":
    main()

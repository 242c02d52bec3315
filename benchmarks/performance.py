"""Runs the benchmarks and writes docs/performance.md.

The tables come from attention_layers.py (time, taking turns with a peer in one process) and
peak_memory.py (time and memory at growing lengths, each case in a fresh process).
"""

import argparse
import datetime
import os
import platform
import shlex
import statistics
import subprocess
import sys
from pathlib import Path

import attention_layers
import keras
import numpy as np
import peak_memory
import tensorflow as tf
from step_loops import positive

import keras_attention

DOCS = Path(__file__).parents[1] / "docs"


def import_seconds(rounds):
    """What `import keras_attention` takes after `import keras`: the median, in fresh processes."""
    code = (
        "import time, keras, tensorflow; t = time.perf_counter(); import keras_attention; "
        "print(time.perf_counter() - t)"
    )
    command = [sys.executable, "-c", code]
    return statistics.median(
        float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        for _ in range(rounds)
    )


def processor():
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def surroundings(rounds):
    command = shlex.join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *sys.argv[1:]])
    devices = [device.device_type for device in tf.config.list_physical_devices()]
    return f"""\
- Command: `{command}`, {rounds} rounds, on {datetime.date.today()}
- Machine: {os.cpu_count()} cores of {processor()}, {platform.system()}; TensorFlow sees \
{", ".join(devices)}
- Versions: keras_attention {keras_attention.__version__}, Keras {keras.version()}, \
TensorFlow {tf.__version__}, NumPy {np.__version__}, Python {platform.python_version()}"""


def report(options, picture):
    return f"""\
# Speed and memory

Written by `benchmarks/performance.py` (`make benchmark`). Decoding has a page of its
own, [Speed of decoding](decoding.md), and so has training over several processes,
[Several devices and machines](distribution.md#how-much-faster).

{surroundings(options.rounds)}
- `import keras_attention` after `import keras`: {import_seconds(options.rounds):.2f} s

## Time

The two of a row hold the same weights and take turns in one process, inside `tf.function`, in
float32 unless it says otherwise. Times are medians; the ratio is the median of our time divided
by the peer's in the same round: below 1 ours is faster. "Of peak" is the share that our layer
reaches of the speed of a large product of matrices, measured in the same run; half of the pairs
count where a mask is causal, and a backward pass counts as two forward ones. The last column is
how far the two outputs are apart at most. Compare ratios, not times: absolute times depend on what
else the machine does.

{attention_layers.section(options.quick, options.rounds)}

## Memory

Each case in a fresh process: peak memory of the first call over the warm process, with inputs and
results; times of single calls.

{peak_memory.section(options.quick)}

## By length

Causal self-attention of one sequence, forward and backward.

![Time and peak memory by length](results/{picture.name})

{peak_memory.draw(picture, options.quick)}
"""


def write_whole(path, text):
    """The file appears complete or not at all."""
    temporary = path.with_name(path.name + ".tmp")
    try:
        temporary.write_text(text, "utf-8")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def main():
    first, _, rest = __doc__.partition("\n\n")
    parser = argparse.ArgumentParser(description=first, epilog=rest)
    parser.add_argument("--quick", action="store_true", help="tiny shapes, to see that all works")
    parser.add_argument("--rounds", type=positive, help="rounds (default: 7, quick 2)")
    parser.add_argument("--output", type=Path, default=DOCS, help="folder (default: docs/)")
    options = parser.parse_args()
    options.rounds = options.rounds or (2 if options.quick else 7)
    (options.output / "results").mkdir(parents=True, exist_ok=True)
    path = options.output / "performance.md"
    write_whole(path, report(options, options.output / "results" / "performance.png"))
    print(f"Written to {path}")
    if wrong := list(peak_memory.complaints(options.quick)):
        sys.exit("\n".join(wrong))


if __name__ == "__main__":
    main()

"""What each attention costs: a training step of the pronunciation model.

The model and sizes of score_functions.py, on 3,600 bundled words. All attentions make one step each
in turn, on the same batch, so that what else the machine does hits all alike; figures are medians.
`python benchmarks/quality/report.py` puts them beside the error rates, into docs/attention.md.
"""

import argparse
import json
import os
import platform
import sys
import time
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "examples"), str(ROOT)]

import keras
import tensorflow as tf
from g2p_data import BUNDLED, Vocabulary, read_lexicon, take, training_batches
from g2p_model import build_model, compile_model
from g2p_recipe import SMALL
from score_functions import VARIANTS

from keras_attention.whole import whole

WORDS = 3600


def build(variant, vocabulary):
    """A compiled model."""
    keras.utils.set_random_seed(1)
    attention, _, feeding = variant.partition("+")
    model = build_model(vocabulary, attention, SMALL, bool(feeding))
    compile_model(model, SMALL, steps=1000)
    return model


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--steps", type=int, default=40, help="timed steps of each (default: %(default)s)")
    add("--output", type=Path, default=ROOT / "docs" / "results" / "step_times.json")
    options = parser.parse_args(arguments)
    lexicon = take(read_lexicon(BUNDLED), WORDS)
    vocabulary = Vocabulary.of(lexicon)
    batches = [
        batch
        for batch in training_batches(lexicon, vocabulary, SMALL.batch_size, seed=1)
        if len(batch[1]) == SMALL.batch_size
    ]
    built = {}
    for variant in VARIANTS:
        model = built[variant] = build(variant, vocabulary)
        for batch in batches[:2]:  # the second has another size: now sizes are free
            model.train_on_batch(*batch)
        print(f"{variant}: ready", flush=True)
    steps = {variant: [] for variant in VARIANTS}
    for number in range(options.steps):
        batch = batches[number % len(batches)]
        for variant, model in built.items():
            started = time.perf_counter()
            model.train_on_batch(*batch)
            steps[variant].append(time.perf_counter() - started)
    results = {
        "steps": options.steps,
        "cores": os.cpu_count(),
        "versions": {
            "python": platform.python_version(),
            "keras": keras.__version__,
            "tensorflow": tf.__version__,
        },
        "variants": {
            variant: {"milliseconds_a_step": 1000 * median(steps[variant])} for variant in VARIANTS
        },
    }
    with whole(options.output) as path:
        path.write_text(json.dumps(results, indent=1), encoding="utf-8")
    print(f"written to {options.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

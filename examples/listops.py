"""Nested lists: a transformer encoder that computes, and what it looks at.

Learns the values of expressions such as [ MAX 2 9 [ MIN 4 7 ] 0 ], which is 9, and is tested on
others, by their depth (one deeper than it has learned) and by their length. The encoder reads the
whole expression at once, and its first token says the value, one digit. MED is the median, SUM the
sum modulo 10. The picture has the attention of each layer for one expression.
"""

import argparse
import importlib.util
import json
import sys
import time
from collections import Counter
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from command_line import load_model, unicode_text
from g2p_options import OneLineErrors, positive
from listops_data import DIGITS, examples, parse, written
from translate import check_output
from translate_options import above_zero, fraction

from keras_attention import (
    WarmupCosine,
    WordTokenizer,
    attention_scores_model,
    plot_alignment,
    text_classifier,
)
from keras_attention.text import DataError
from keras_attention.whole import whole

DEFAULTS = {"units": 96, "layers": 4, "examples": 40_000, "epochs": 5, "depth": 3, "tests": 300}
SMOKE = {"units": 16, "layers": 2, "examples": 512, "epochs": 2, "depth": 2, "tests": 20}
BATCH_SIZE, BOUNDARIES, SPAN = 64, (8, 12, 16, 21, 26, 31, 36, 41, 46), 10
LONGEST_DRAWN = 24
WRITTEN = {"model.keras", "results.json", "attention.png"}
EXPRESSIONS = """\
examples:
  listops.py                            learns, tests and draws, into build/listops
  listops.py --model build/listops --text "[ SUM 8 7 [ MIN 4 2 ] ]" "[MED 1 5 9]"
                                        computes with the model of an earlier run"""


def parse_options(arguments=None):
    parser = OneLineErrors(
        prog="listops.py",
        description=__doc__,
        epilog=EXPRESSIONS,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    add = parser.add_argument
    add("--units", type=positive, help=f"of all layers (default: {DEFAULTS['units']})")
    add("--layers", type=positive, help=f"(default: {DEFAULTS['layers']})")
    add("--heads", type=positive, default=4, help="(default: %(default)s)")
    add(
        "--position",
        choices=("rotary", "relative", "alibi", "sinusoidal"),
        default="rotary",
        help="how positions are known (default: %(default)s)",
    )
    add("--dropout", type=fraction, default=0.05, help="(default: %(default)s)")
    add("--examples", type=positive, help=f"to learn from (default: {DEFAULTS['examples']})")
    add("--depth", type=positive, help=f"of the deepest of them (default: {DEFAULTS['depth']})")
    add("--tests", type=positive, help=f"of each depth (default: {DEFAULTS['tests']})")
    add("--epochs", type=positive, help=f"(default: {DEFAULTS['epochs']})")
    add("--learning-rate", type=above_zero, default=1e-3, help="the peak (default: %(default)s)")
    add("--seed", type=int, default=1, help="of all random numbers (default: %(default)s)")
    add(
        "--output",
        type=Path,
        default=Path("build/listops"),
        metavar="DIR",
        help="folder for model.keras, results.json and attention.png (default: %(default)s)",
    )
    add("--smoke", action="store_true", help="tiny sizes: tries the script in seconds")
    add(
        "--text",
        type=unicode_text,
        nargs="+",
        help="expressions to compute by --model, without training",
    )
    add("--model", type=Path, metavar="DIR", help="the output folder of a run, to use its model")
    options = parser.parse_args(arguments)
    if (options.text is None) != (options.model is None):
        parser.error("--text and --model go together: what to compute, and with what")
    for name, value in (SMOKE if options.smoke else DEFAULTS).items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    if options.units % (2 * options.heads):
        parser.error(
            f"--units must be an even number for each of --heads {options.heads}. "
            f"Got {options.units}"
        )
    return options


def make_batches(tokenizer, train, seed):
    """Endless batches of ids `[B, S]` of like lengths, and classes `[B]`."""
    ids = tokenizer.encode([x.text for x in train])
    classes = np.array([DIGITS.index(x.value) for x in train], "int32")
    return (
        tf.data.Dataset.from_tensor_slices((ids, classes))
        .shuffle(len(train), seed)
        .repeat()
        .map(lambda row, value: (row[: tf.math.count_nonzero(row)], value))
        .bucket_by_sequence_length(
            lambda row, value: tf.shape(row)[0], BOUNDARIES, [BATCH_SIZE] * (len(BOUNDARIES) + 1)
        )
        .prefetch(tf.data.AUTOTUNE)
    )


def train(model, learned, options):
    """Fits the model; returns Keras's history."""
    batches = make_batches(model.tokenizer, learned, options.seed)
    steps = max(1, len(learned) // BATCH_SIZE)
    total = max(2, steps * options.epochs)
    rate = WarmupCosine(options.learning_rate, max(1, total // 20), total)
    model.compile(
        keras.optimizers.Adam(rate, beta_2=0.98, global_clipnorm=1.0),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        jit_compile=False,  # batches come in many lengths, each of which would be compiled
    )
    fitting = {"epochs": options.epochs, "steps_per_epoch": steps, "shuffle": False, "verbose": 2}
    return model.fit(batches, **fitting).history


def test(model, held_out):
    """Shares of right values, by depth and by length; and for each operator at the front."""
    right = [
        value == x.value
        for value, x in zip(model.classify([x.text for x in held_out]), held_out, strict=True)
    ]
    groups = {
        "depth": [x.depth for x in held_out],
        "length": [f"{x.length // SPAN * SPAN:2}-{x.length // SPAN * SPAN + 9}" for x in held_out],
        "operator": [x.text.split()[1] for x in held_out],
    }
    found = {}
    for kind, keys in groups.items():
        counts, hits = Counter(keys), Counter()
        for key, hit in zip(keys, right, strict=True):
            hits[key] += hit
        found[kind] = {
            str(key): {"right": hits[key] / counts[key], "count": counts[key]}
            for key in sorted(counts)
        }
    return found


def show(found, learned_depth):
    for kind, rows in found.items():
        print(f"{kind:>8}  {'tested':>6}  {'right':>6}")
        for key, row in rows.items():
            unseen = kind == "depth" and int(key) > learned_depth
            note = "   (deeper than any it learned)" if unseen else ""
            print(f"{key:>8}  {row['count']:6,}  {row['right']:6.1%}{note}")


def draw(model, held_out, options):
    """Draws the attention of each layer, the mean over its heads, for one expression."""
    from matplotlib.figure import Figure

    short = [x for x in held_out if x.length <= LONGEST_DRAWN and x.depth <= options.depth]
    shown = max(short or held_out, key=lambda x: (x.depth, x.length))
    scores = attention_scores_model(model)(model.tokenizer.encode([shown.text]))
    tokens = shown.text.split()
    columns = -(-options.layers // 2)
    side = 0.22 * len(tokens) + 1.5
    figure = Figure(figsize=(columns * side, min(2, options.layers) * side), layout="constrained")
    grid = figure.subplots(min(2, options.layers), columns, squeeze=False).flat
    for number, axes in enumerate(grid, 1):
        if number > options.layers:
            axes.remove()
            continue
        weights = np.asarray(scores[f"encoder_{number}/self"])[0].mean(axis=0)
        shades = {"title": f"layer {number}", "vmax": weights.max()}
        plot_alignment(weights, tokens, tokens, ax=axes, **shades)
    with whole(options.output / "attention.png") as path:
        figure.savefig(path, format="png", dpi=120)
    answer = model.classify([shown.text])[0]
    print(f"Drawn: {shown.text}, of value {shown.value}; the model says {answer}.")


def run(options):
    """All of it: `run(parse_options([...]))` returns what is written to results.json."""
    started = time.monotonic()
    if importlib.util.find_spec("matplotlib") is None:
        raise DataError("matplotlib is needed to draw the attention: pip install matplotlib")
    check_output(options.output, WRITTEN)
    sizes = options.examples, options.depth, options.tests, options.depth + 1
    learned, held_out = examples(options.seed, *sizes)
    value, count = Counter(x.value for x in held_out).most_common(1)[0]
    keras.utils.set_random_seed(options.seed)
    model = text_classifier(
        WordTokenizer.fit(x.text for x in learned),
        list(DIGITS),
        layers=options.layers,
        units=options.units,
        num_heads=options.heads,
        feedforward_size=2 * options.units,
        position=options.position,
        dropout=options.dropout,
        pooling="first",
    )
    print(
        f"{len(learned):,} expressions of depth 1 to {options.depth} to learn from, "
        f"{len(held_out):,} others to test on.\n{model.count_params():,} parameters. "
        f"Always saying {value} would be right for {count / len(held_out):.1%}.",
        flush=True,
    )
    trained = time.monotonic()
    history = train(model, learned, options)
    trained = round(time.monotonic() - trained, 1)
    with whole(options.output / "model.keras") as path:
        model.save(path)
    model = keras.models.load_model(options.output / "model.keras")
    found = test(model, held_out)
    show(found, options.depth)
    draw(model, held_out, options)
    results = {
        "accuracy": found,
        "most_frequent": count / len(held_out),
        "expressions": {"train": len(learned), "test": len(held_out)},
        "options": {k: str(v) if isinstance(v, Path) else v for k, v in vars(options).items()},
        "parameters": model.count_params(),
        "history": {key: [round(x, 4) for x in values] for key, values in history.items()},
        "seconds": {"training": trained, "total": round(time.monotonic() - started, 1)},
        "versions": {"keras": keras.__version__, "tensorflow": tf.__version__},
    }
    with whole(options.output / "results.json") as path:
        path.write_text(json.dumps(results, indent=1), encoding="utf-8")
    total = results["seconds"]["total"]
    print(f"{trained:.0f} s of training, {total:.0f} s in all; written to {options.output}.")
    return results


def compute(options):
    """Prints the model's value of each expression, by the model of an earlier run."""
    texts = [written(parse(text)) for text in options.text]
    model = load_model(options.model)
    for text, value in zip(texts, model.classify(texts), strict=True):
        print(f"{text}\t{value}")


def main(arguments=None):
    options = parse_options(arguments)
    try:
        run(options) if options.text is None else compute(options)
    except (DataError, OSError) as error:
        print(f"listops.py: error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())

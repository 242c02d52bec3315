"""Draws docs/gallery.png: what each attention looks at, for one sentence.

Trains the model of examples/quickstart.py once with each attention, on the same pairs and for as
many epochs, and draws how each of them reads one number. Titles have the share of held-out numbers
that are right.
"""

import argparse
import sys
import time
from pathlib import Path

SITE = Path(__file__).resolve().parent
ROOT = SITE.parents[1]
sys.path[:0] = [str(SITE), str(ROOT), str(ROOT / "examples")]

import keras
from make_notebook import cells

import keras_attention as ka
from keras_attention.whole import whole

TEXT = "three hundred five thousand twenty"
SHAPE = 3, 4
# Title: options of `seq2seq`.
ATTENTIONS = {
    "bahdanau": {"attention": "bahdanau"},
    "dot": {"attention": "dot"},
    "general": {"attention": "general"},
    "concat": {"attention": "concat"},
    "location": {"attention": "location", "attention_options": {"max_memory": 12}},
    "dot, input feeding": {"attention": "dot", "input_feeding": True},
    "local-p, window 2": {
        "attention": "general",
        "attention_options": {"local": "predictive", "window": 2},
    },
    "coverage": {"attention": "bahdanau", "attention_options": {"history": "coverage"}},
    "location features": {"attention": "bahdanau", "attention_options": {"history": "location"}},
    "monotonic": {
        "attention": "bahdanau",
        "attention_options": {"normalizer": ka.MonotonicAlignment()},
    },
    "dot, sparsemax": {"attention": "dot", "attention_options": {"normalizer": "sparsemax"}},
    "dot, 1.5-entmax": {"attention": "dot", "attention_options": {"normalizer": "entmax15"}},
}


def quickstart_data():
    """What the first cells of the notebook define: numbers, and how to say them."""
    script = (ROOT / "examples" / "quickstart.py").read_text("utf-8")
    namespace = {}
    for cell in cells(script.split("# ## Model")[0]):
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), namespace)
    return namespace


def learn(data, options, epochs):
    """A trained model and the share of held-out numbers that it has right."""
    keras.utils.set_random_seed(1)
    sources, targets = data["sources"], data["targets"]
    source, target = ka.WordTokenizer.fit(sources), ka.CharacterTokenizer.fit(targets)
    model = ka.seq2seq(source, target, units=96, cell="gru", **options)
    batches = ka.text_batches(sources, targets, source, target, batch_size=64, seed=1)
    rate = keras.optimizers.schedules.CosineDecay(5e-3, epochs * len(batches))
    model.compile(keras.optimizers.Adam(rate, global_clipnorm=1.0), ka.MaskedCrossEntropy())
    model.fit(batches, epochs=epochs, shuffle=False, verbose=0)
    answers = model.translate([data["in_words"](number) for number in data["held_out"]])
    right = [answer == str(x) for answer, x in zip(answers, data["held_out"], strict=True)]
    return model, sum(right) / len(right)


def main(arguments=None):
    from matplotlib.figure import Figure

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=12, help="(default: %(default)s)")
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "gallery.png")
    options = parser.parse_args(arguments)
    data = quickstart_data()
    figure = Figure(figsize=(3 * SHAPE[1], 3 * SHAPE[0]), layout="constrained")
    panels = figure.subplots(*SHAPE).ravel()
    for axes, (title, attention) in zip(panels, ATTENTIONS.items(), strict=True):
        started = time.monotonic()
        model, right = learn(data, attention, options.epochs)
        found = model.translate(TEXT, details=True)
        title = f"{title}: {right:.1%}"
        ka.plot_alignment(
            found.attention_scores, found.source_tokens, found.target_tokens, title=title, ax=axes
        )
        print(f"{title}, {found.text}, {time.monotonic() - started:.0f} s", flush=True)
    with whole(options.output) as path:
        figure.savefig(path, dpi=80, metadata={"Software": None})
    print(f"written to {options.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The pronunciation model written with keras.layers alone, next to ours: quality, time a step.

Keras has no decoder with attention: what its layers allow is a GRU over all steps and attention
behind it, that is Luong's model without input feeding. So `keras.layers.Attention` (dot) and
`keras.layers.AdditiveAttention` stand in one run with `LuongDecoder` on the same words, with the
same sizes, seeds and training. Keras has no search either: there the whole model runs again for
each phone.
"""

import argparse
import json
import sys
import time
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "examples"), str(ROOT)]

import g2p_model
import keras
import numpy as np
import tensorflow as tf
from g2p_data import END, START, Vocabulary, load_parts, padded, training_batches
from g2p_metrics import error_rates
from g2p_recipe import SMALL
from g2p_train import test
from keras import layers

from keras_attention.whole import whole

CASES = {
    "ours": ("dot", "concat"),
    "keras": ("Attention", "AdditiveAttention"),
}
LONGEST, TIMED_STEPS = 40, 60


def plain_model(vocabulary, attention):
    """`g2p_model.build_model` with nothing but keras.layers."""
    units, dropout = SMALL.units, SMALL.dropout
    letters = keras.Input([None], dtype="int32", name="letters")
    phones = keras.Input([None], dtype="int32", name="phones")
    embed_letters = layers.Embedding(vocabulary.letter_count, SMALL.embedding, mask_zero=True)
    embed_phones = layers.Embedding(vocabulary.phone_count, SMALL.embedding, mask_zero=True)
    gru = layers.GRU(units // 2, return_sequences=True, return_state=True)
    embedded = layers.Dropout(dropout)(embed_letters(letters))
    memory, forward, backward = layers.Bidirectional(gru)(embedded)
    memory = layers.Dropout(dropout)(memory)
    last = layers.Concatenate()([forward, backward])
    state = layers.Dense(units, activation="tanh")(last)
    embedded = layers.Dropout(dropout)(embed_phones(phones))
    hidden = layers.GRU(units, return_sequences=True)(embedded, initial_state=state)
    context = getattr(layers, attention)()([hidden, memory])
    combined = layers.Dense(units, activation="tanh")(layers.Concatenate()([context, hidden]))
    logits = layers.Dense(vocabulary.phone_count)(layers.Dropout(dropout)(combined))
    return keras.Model([letters, phones], logits)


def pronounce_plainly(model, vocabulary, words):
    """Greedy search by running the model on all phones so far, once for each phone."""
    letters, _ = padded(vocabulary.letter_ids(words))
    ids = np.full([len(words), 1], START, "int32")
    run = tf.function(lambda a, b: model([a, b], training=False)[:, -1], reduce_retracing=True)
    for _ in range(LONGEST):
        logits = run(letters, ids).numpy()
        logits[:, :END] = -np.inf
        ids = np.concatenate([ids, np.argmax(logits, axis=-1)[:, None].astype("int32")], axis=1)
    rows = []
    for row in ids[:, 1:]:
        ends = np.flatnonzero(row == END)
        rows.append(vocabulary.phones_of(row[: ends[0]] if len(ends) else row))
    return rows


def build(kind, name, vocabulary, steps):
    keras.utils.set_random_seed(1)
    if kind == "ours":
        model = g2p_model.build_model(vocabulary, name, SMALL)
    else:
        model = plain_model(vocabulary, name)
    g2p_model.compile_model(model, SMALL, steps)
    return model


def main(arguments=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--data", type=Path, required=True, help="e.g. DIR/ice_train.tsv of SIGMORPHON 2020")
    add("--epochs", type=int, default=SMALL.epochs, help="(default: %(default)s)")
    add("--output", type=Path, default=ROOT / "docs" / "results" / "plain_keras.json")
    options = parser.parse_args(arguments)
    parts = load_parts(options.data)
    vocabulary = Vocabulary.of(parts.train)
    batches = training_batches(parts.train, vocabulary, SMALL.batch_size, 1)
    cases = [(kind, name) for kind, names in CASES.items() for name in names]
    models = {case: build(*case, vocabulary, len(batches) * options.epochs) for case in cases}
    words, references = list(parts.test), list(parts.test.values())
    seconds, results = {case: [] for case in cases}, {}
    # One step of each in turn, on the same batches: what else the machine does hits all alike.
    for epoch in range(options.epochs):
        for (letters, phones), labels in batches:
            for case in cases:
                started = time.perf_counter()
                models[case].train_on_batch([letters, phones], labels)
                seconds[case].append(time.perf_counter() - started)
        print(f"epoch {epoch + 1} of {options.epochs}", flush=True)
    for case, model in models.items():
        kind, name = case
        started = time.perf_counter()
        if kind == "ours":
            rates = test(g2p_model.Transcriber(model), vocabulary, parts.test)
        else:
            rates = error_rates(pronounce_plainly(model, vocabulary, words), references)
        results[f"{kind} {name}"] = {
            "word_error": rates.word,
            "phoneme_error": rates.phoneme,
            "milliseconds_a_step": 1000 * median(seconds[case][-TIMED_STEPS * 10 :]),
            "search_seconds": time.perf_counter() - started,
            "parameters": model.count_params(),
        }
        print(f"{kind} {name}: {results[f'{kind} {name}']}", flush=True)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    with whole(options.output) as path:
        path.write_text(json.dumps(results, indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

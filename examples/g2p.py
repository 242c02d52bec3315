"""Grapheme to phoneme: learns to pronounce words, with attention.

Trains an encoder and an attentional decoder on a pronunciation dictionary, tests them on words
held out, saves and exports the model, and uses the exported one in a process without Keras.
"""

import contextlib
import dataclasses
import importlib.util
import json
import subprocess
import sys
import time
from pathlib import Path

import keras
import tensorflow as tf
from command_line import OutputError, check_folder
from g2p_data import BUNDLED, DataError, Parts, Vocabulary, companions, load_parts, take
from g2p_export import export_saved_model
from g2p_metrics import error_rates, error_rates_by_length
from g2p_model import Transcriber, build_model, build_transformer
from g2p_options import parse_options
from g2p_recipe import BUNDLED_WORDS, recipe_for
from g2p_train import pronounce, train

from keras_attention.whole import whole

DEV_WORDS, TEST_WORDS, SMOKE_WORDS, COMPARED_WORDS, SHOWN_WORDS = 500, 2000, (300, 50, 50), 100, 8
# Runs a script in a process where importing Keras or this package fails.
WITHOUT_KERAS = (
    "import runpy, sys; sys.modules.update(keras=None, keras_attention=None); del sys.argv[0]; "
    "runpy.run_path(sys.argv[0], run_name='__main__')"
)


class ExportError(RuntimeError):
    """The exported model does not do what the Keras model does."""


def load_words(options):
    """Returns the parts of the data, cut to as many words as the options ask for."""
    parts = load_parts(options.data, options.dev_data, options.test_data)
    bundled = options.data == BUNDLED and not options.full
    tested = options.eval_words or (None if options.full else TEST_WORDS)
    limits = [BUNDLED_WORDS if bundled else None, DEV_WORDS, tested]
    if options.smoke:
        limits = SMOKE_WORDS
    return Parts(*map(take, parts, [options.limit or limits[0], *limits[1:]]))


def choose_recipe(options, training_words):
    recipe = recipe_for(training_words, options.full, options.model, options.smoke)
    return dataclasses.replace(recipe, epochs=options.epochs) if options.epochs else recipe


def describe(options, parts, recipe):
    counts = ", ".join(f"{len(part):,} {name}" for name, part in parts._asdict().items())
    own_files = options.dev_data or any(companions(options.data))
    split = "in files of their own" if own_files else "split by a hash of the word"
    print(f"Data: {options.data.name}, {counts} words, {split}.")
    print("All pronunciations of a word are in one part; a word is right if any of its listed")
    print("pronunciations is met.")
    feeding = " with input feeding" if options.input_feeding else ""
    print(f"Model: {options.model}; attention: {options.attention}{feeding}; {recipe}", flush=True)


def save(model, vocabulary, folder):
    """Saves the Keras model and its vocabulary; returns the model as it loads again."""
    with whole(folder / "model.keras") as path:
        model.save(path)
    with whole(folder / "vocabulary.json") as path:
        path.write_text(json.dumps(vocabulary._asdict()), encoding="utf-8")
    return keras.models.load_model(folder / "model.keras")


def draw_first(words, predictions, references):
    """Returns the words with the longest right one first: its alignment is drawn."""
    right = [
        word
        for word, phones, listed in zip(words, predictions, references, strict=True)
        if tuple(phones) in listed
    ]
    first = max(right or words, key=len)
    return [first, *(word for word in words if word != first)]


def pronounce_without_keras(folder, words, plot):
    """Pronounces words with the exported model in a new process that has only TensorFlow."""
    command = [sys.executable, "-c", WITHOUT_KERAS, Path(__file__).with_name("pronounce.py")]
    command += ["--json", "--model", folder / "saved_model"]
    with whole(plot) if plot else contextlib.nullcontext() as picture:
        command += ["--plot", picture] if plot else []
        process = subprocess.run(
            [*command, "--", *words], stdout=subprocess.PIPE, text=True, encoding="utf-8"
        )
        if process.returncode:
            raise ExportError("the process without Keras failed")
    return json.loads(process.stdout)


def compare(results, words, predictions, scores):
    """Checks that the exported model says what the Keras model says."""
    expected = dict(zip(words, zip(predictions, scores, strict=True), strict=True))
    largest = 0.0
    for result in results:
        phones, score = expected[result["word"]]
        if result["pronunciation"] != " ".join(phones):
            raise ExportError(
                f"{result['word']}: the exported model says {result['pronunciation']!r}, "
                f"the Keras model {' '.join(phones)!r}"
            )
        largest = max(largest, abs(result["score"] - score))
    if largest > 1e-3:
        raise ExportError(f"the scores of the exported model differ by {largest:.2e}")
    print(f"A process without Keras pronounced {len(results)} words with the exported model just")
    print(f"as the Keras model did; the largest difference of scores is {largest:.0e}.")


def show(results, lexicon):
    for result in results:
        right = tuple(result["pronunciation"].split()) in lexicon[result["word"]]
        listed = "" if right else f"   (listed: {' '.join(lexicon[result['word']][0])})"
        print(f"  {result['word']:<20} {result['pronunciation']}{listed}")


def write_results(
    options, parts, recipe, history, rates, beam_rates, by_length, training_seconds, seconds
):
    best = min(history.history["dev_word_error"])
    results = {
        "data": options.data.name,
        "model": options.model,
        "attention": options.attention,
        "seed": options.seed,
        "words": {name: len(part) for name, part in parts._asdict().items()},
        "recipe": dataclasses.asdict(recipe),
        "best_epoch": history.history["dev_word_error"].index(best) + 1,
        "dev_word_error": best,
        "phoneme_error": rates.phoneme,
        "word_error": rates.word,
        "word_error_by_length": by_length,
        "beam_word_error": beam_rates.word if beam_rates else None,
        "beam_phoneme_error": beam_rates.phoneme if beam_rates else None,
        "beam_width": options.beam_width,
        "input_feeding": options.input_feeding,
        "training_seconds": training_seconds,
        "seconds": seconds,
        "versions": {"keras": keras.__version__, "tensorflow": tf.__version__},
    }
    with whole(options.output / "results.json") as path:
        path.write_text(json.dumps(results, indent=1), encoding="utf-8")


def run(options):
    started = time.monotonic()
    parts = load_words(options)
    check_folder(options.output)
    keras.utils.set_random_seed(options.seed)
    recipe = choose_recipe(options, len(parts.train))
    describe(options, parts, recipe)
    vocabulary = Vocabulary.of(parts.train)
    if options.model == "transformer":
        model = build_transformer(vocabulary, recipe)
    else:
        model = build_model(vocabulary, options.attention, recipe, options.input_feeding)
    training = time.monotonic()
    history = train(model, recipe, vocabulary, parts, options.seed)
    training_seconds = time.monotonic() - training
    model = save(model, vocabulary, options.output)

    words, references = list(parts.test), list(parts.test.values())
    predictions, scores = pronounce(Transcriber(model), vocabulary, words)
    rates = error_rates(predictions, references)
    print(f"Held-out words, greedy search: {rates}")
    beam_rates = None
    if options.beam_width > 1:
        beam, _ = pronounce(Transcriber(model, options.beam_width), vocabulary, words)
        beam_rates = error_rates(beam, references)
        print(f"Held-out words, beam of {options.beam_width}: {beam_rates}")

    with whole(options.output / "saved_model") as path:
        export_saved_model(model, vocabulary, path)
    plot = None if options.attention == "none" else options.output / "alignment.png"
    compared = slice(COMPARED_WORDS)
    chosen = draw_first(words[compared], predictions[compared], references[compared])
    results = pronounce_without_keras(options.output, chosen, plot)
    compare(results, words, predictions, scores)
    show(results[:SHOWN_WORDS], parts.test)
    seconds = time.monotonic() - started
    by_length = error_rates_by_length(words, predictions, references)
    write_results(
        options, parts, recipe, history, rates, beam_rates, by_length, training_seconds, seconds
    )
    print(f"{seconds:.0f} s; written to {options.output}: ", end="")
    print(", ".join(sorted(path.name for path in options.output.iterdir())))


def main(arguments=None):
    options = parse_options(arguments, __doc__)
    if importlib.util.find_spec("matplotlib") is None and options.attention != "none":
        print("g2p.py: error: matplotlib is needed to draw the alignment", file=sys.stderr)
        return 2
    try:
        run(options)
    except (DataError, OutputError) as error:
        print(f"g2p.py: error: {error}", file=sys.stderr)
        return 2
    except ExportError as error:
        print(f"g2p.py: error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

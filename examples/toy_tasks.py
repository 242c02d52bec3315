"""Learning a task of generated pairs of strings: train, test, draw, save, answer."""

import importlib.util
import json
import platform
import sys
import time
from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf
from attentions import attention_options
from command_line import OutputError, check_folder, load_model

import keras_attention
from keras_attention.callbacks import TranslationMetric
from keras_attention.losses import MaskedCrossEntropy
from keras_attention.models.batches import text_batches
from keras_attention.models.seq2seq import seq2seq
from keras_attention.text import CharacterTokenizer, DataError
from keras_attention.visualize import alignment_text, plot_alignment
from keras_attention.whole import whole

BATCH_SIZE, LEARNING_RATE = 64, 3e-3
WATCHED = 200
PACKAGES = (keras, tf, np, keras_attention)
MODEL, RESULTS = "model.keras", "results.json"
NOT_SETTINGS = ("output", "text", "model", "smoke")


class TaskError(RuntimeError):
    """A run that can not be done: a package or a model is missing."""


class Task(NamedTuple):
    """What a model learns and is asked.

    Attributes:
        title: what is learned, in a few words.
        grouped_by: heading of the groups, e.g. "length".
        train: list of pairs (source, target).
        test: dictionary from the name of a group to its list of pairs; none is in `train`.
        watched: pairs that the model is asked after each epoch.
        drawn: dictionary from the name of a picture, without suffix, to its pair.
        packages: modules that the pairs depend on; their versions are kept with the results.
    """

    title: str
    grouped_by: str
    train: list
    test: dict
    watched: list
    drawn: dict
    packages: tuple = ()


class Accuracy(NamedTuple):
    """Shares of right answers: of whole texts, and of characters at their place."""

    texts: float
    characters: float
    count: int


def accuracy(outputs, references):
    """Compares outputs with references, lists of N str.

    A character of a reference is right if the output has the same one at the same place.
    """
    if len(outputs) != len(references) or not references:
        raise ValueError(
            "Expected as many `outputs` as `references`, and at least one, "
            f"got {len(outputs)} and {len(references)}"
        )
    pairs = list(zip(outputs, references, strict=True))
    same = sum(a == b for pair in pairs for a, b in zip(*pair, strict=False))
    characters = sum(map(len, references))
    texts = sum(output == reference for output, reference in pairs)
    return Accuracy(texts / len(pairs), same / max(characters, 1), len(pairs))


def every_few(pairs, count=WATCHED):
    """At most `count` of the pairs, from everywhere in the list."""
    return pairs[:: max(1, -(-len(pairs) // count))]


def build(task, options):
    """The model for a task, with its tokenizers inside."""
    sources, targets = zip(*task.train, strict=True)
    longest = max(len(source) for pairs in task.test.values() for source, _ in pairs)
    longest = 1 + max(longest, *map(len, sources))  # the end is a token, too
    return seq2seq(
        CharacterTokenizer.fit(sources),
        CharacterTokenizer.fit(targets),
        units=options.units,
        **attention_options(options.attention, options.input_feeding, longest_source=longest),
    )


def train(model, task, options):
    """Teaches the model the pairs; returns Keras's history."""
    sources, targets = zip(*task.train, strict=True)
    tokenizers = model.inference.source, model.inference.target
    batches = text_batches(sources, targets, *tokenizers, BATCH_SIZE, seed=options.seed)
    steps = len(batches) * options.epochs
    warm_up = steps // 20
    schedule = keras.optimizers.schedules.CosineDecay(
        LEARNING_RATE / 20,
        max(steps - warm_up, 1),
        warmup_target=LEARNING_RATE,
        warmup_steps=warm_up,
    )
    model.compile(keras.optimizers.Adam(schedule, global_clipnorm=1.0), MaskedCrossEntropy())
    asked, right = zip(*task.watched, strict=True)
    watch = TranslationMetric(
        asked,
        right,
        lambda *texts: accuracy(*texts).texts,
        name="held_out_accuracy",
        **search_options(task),
    )
    return model.fit(batches, epochs=options.epochs, callbacks=[watch], shuffle=False)


def search_options(task):
    """How to search for answers: none is empty, and there is room for the end of the longest."""
    longest = max(len(target) for pairs in task.test.values() for _, target in pairs)
    return {"min_length": 1, "max_length": longest + 1}


def save(model, folder):
    """Saves the model; returns it as it loads again."""
    with whole(folder / MODEL) as path:
        model.save(path)
    return load_model(folder)


def test(model, task):
    """The accuracy of the model on each group and on "all"."""
    pairs = [pair for group in task.test.values() for pair in group]
    sources, targets = zip(*pairs, strict=True)
    outputs = model.translate(sources, **search_options(task))
    found, first = {}, 0
    for name, group in task.test.items():
        rows = slice(first, first + len(group))
        found[name] = accuracy(outputs[rows], targets[rows])
        first += len(group)
    return {**found, "all": accuracy(outputs, targets)}


def table(heading, found):
    """The accuracies as lines of text."""
    width = max(map(len, [heading, *found]))
    lines = [f"{heading:>{width}}  {'texts':>6}  {'right':>6}  characters right"]
    for name, (texts, characters, count) in found.items():
        lines.append(f"{name:>{width}}  {count:6,}  {texts:6.1%}  {characters:16.1%}")
    return "\n".join(lines)


def show(model, task, options):
    """Prints some answers with their alignments, and draws these."""
    for name, (source, target) in task.drawn.items():
        path = options.output / f"{name}.png"
        answer = model.translate(source, details=True, **search_options(task))
        verdict = "" if answer.text == target else f"   (right would be: {target})"
        print(f"\n{source} -> {answer.text}{verdict}")
        if options.attention == "none":
            path.unlink(missing_ok=True)  # a picture of another run would mislead
            continue
        seen = answer.attention_scores, answer.source_tokens, answer.target_tokens
        print(alignment_text(*seen))
        plot_alignment(*seen, title=source, path=path)


def write_results(task, options, history, found, seconds):
    settings = {name: x for name, x in vars(options).items() if name not in NOT_SETTINGS}
    results = {
        "task": task.title,
        "settings": settings,
        "pairs": {"train": len(task.train), "test": found["all"].count},
        "accuracy": {name: group._asdict() for name, group in found.items()},
        "history": history.history,
        "seconds": seconds,
        "versions": {
            "python": platform.python_version(),
            **{x.__name__: x.__version__ for x in (*PACKAGES, *task.packages)},
        },
    }
    with whole(options.output / RESULTS) as path:
        path.write_text(json.dumps(results, indent=1, ensure_ascii=False), encoding="utf-8")


def learn(make_task, options):
    """Trains a model, tests the saved one, and writes what came out."""
    started = time.monotonic()
    if importlib.util.find_spec("matplotlib") is None and options.attention != "none":
        raise TaskError("matplotlib is needed to draw the alignment")
    task = make_task(options)
    check_folder(options.output)
    tested = sum(map(len, task.test.values()))
    feeding = " with input feeding" if options.input_feeding else ""
    print(f"{task.title}: {len(task.train):,} pairs to learn from, {tested:,} others to test on.")
    print(f"Attention: {options.attention}{feeding}, {options.units} units.", flush=True)
    keras.utils.set_random_seed(options.seed)
    model = build(task, options)
    history = train(model, task, options)
    model = save(model, options.output)
    found = test(model, task)
    print("The saved model, asked what it has not seen (greedy search):")
    print(table(task.grouped_by, found))
    show(model, task, options)
    seconds = time.monotonic() - started
    write_results(task, options, history, found, seconds)
    print(f"\n{seconds:.0f} s; written to {options.output}: ", end="")
    print(", ".join(sorted(path.name for path in options.output.iterdir())))


def answer(options):
    """Answers texts with a saved model, a line each."""
    model = load_model(options.model or options.output)
    for text, output in zip(options.text, model.translate(options.text, min_length=1), strict=True):
        print(f"{text}\t{output}")


def main(script, make_task, options):
    """Runs an example; returns the exit code."""
    try:
        answer(options) if options.text else learn(make_task, options)
    except (TaskError, OutputError, DataError) as error:
        print(f"{script}.py: error: {error}", file=sys.stderr)
        return 2
    return 0

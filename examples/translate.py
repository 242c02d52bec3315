"""Translation: learns German to English, or any pairs of sentences, with attention.

Trains a recurrent encoder and decoder, keeps the best epoch by validation loss, saves the model,
and tests what was saved: BLEU by greedy and by beam search, whole and by length of the source.
"""

import importlib.util
import json
import re
import sys
import time
from pathlib import Path

import keras
import tensorflow as tf
from attentions import attention_options
from command_line import OutputError, check_folder, load_model
from translate_data import load_parts
from translate_options import parse_options
from translate_score import bleu, bleu_by_length

from keras_attention import (
    CharacterTokenizer,
    MaskedCrossEntropy,
    SubwordTokenizer,
    WordTokenizer,
    plot_alignment,
    seq2seq,
    text_batches,
)
from keras_attention.text import DataError
from keras_attention.whole import whole

VOCABULARY, SHOWN, WARM_UP, LONGEST_DRAWN = 8000, 5, 0.1, 16
WRITTEN = {"model.keras", "alignment.png", "results.json"}
NEEDED = {
    "sacrebleu": "to compute BLEU",
    "matplotlib": "to draw the alignment",
}


class OptionError(ValueError):
    """Options that can not be followed."""


class TimeLimit(keras.callbacks.Callback):
    """Ends the training where the next epoch, as long as the last, would pass the limit."""

    def __init__(self, minutes):
        super().__init__()
        self.seconds, self.started = 60 * minutes, time.monotonic()

    def on_epoch_begin(self, epoch, logs=None):
        self.began = time.monotonic()

    def on_epoch_end(self, epoch, logs=None):
        now = time.monotonic()
        if now - self.started + (now - self.began) > self.seconds:
            self.model.stop_training = True


def default_tokenizer():
    """Subwords where their packages are installed, else words."""
    installed = map(importlib.util.find_spec, ("sentencepiece", "tensorflow_text"))
    return "subwords" if all(installed) else "words"


def fit_tokenizer(kind, texts, vocabulary):
    """A tokenizer of at most `vocabulary` ids, by default as many as the texts allow."""
    size = vocabulary or VOCABULARY
    try:
        if kind == "words":
            return WordTokenizer.fit(texts, max_size=size, lowercase=True)
        if kind == "characters":
            return CharacterTokenizer.fit(texts, max_size=size, lowercase=True)
        return SubwordTokenizer.fit(texts, size, lowercase=True)
    except ValueError as error:
        most = re.search(r"at most (\d+)", str(error))  # few texts hold few subwords
        if vocabulary or not most:
            raise OptionError(f"--vocabulary {size}: {error}") from None
        return SubwordTokenizer.fit(texts, int(most[1]), lowercase=True)


def build(options, source, target):
    try:
        return seq2seq(
            source,
            target,
            **attention_options(options.attention, options.input_feeding),
            units=options.units,
            embedding=options.embedding,
            encoder_layers=options.layers,
            decoder_layers=options.layers,
            dropout=options.dropout,
            tied_embeddings=options.tied_embeddings,
            scheduled_sampling=options.scheduled_sampling,
        )
    except ValueError as error:
        raise OptionError(f"the options do not go together: {error}") from None


def schedule(rate, steps):
    """A learning rate that rises to `rate` and then falls to 0 along a cosine."""
    warm_up = max(1, int(WARM_UP * steps))
    return keras.optimizers.schedules.CosineDecay(
        0.0, max(1, steps - warm_up), warmup_target=rate, warmup_steps=warm_up
    )


def train(model, parts, options):
    """Fits the model and leaves it with the weights of its best epoch; returns the history."""
    tokenizers = model.inference.source, model.inference.target
    batches, dev = (
        text_batches(*pairs, *tokenizers, options.batch_size, seed=options.seed, shuffle=shuffle)
        for pairs, shuffle in ((parts.train, True), (parts.dev, False))
    )
    rate = schedule(options.learning_rate, options.epochs * len(batches))
    model.compile(
        keras.optimizers.Adam(rate, global_clipnorm=1.0),
        MaskedCrossEntropy(label_smoothing=0.1),
        jit_compile=False,  # batches come in many lengths, each of which would be compiled
    )
    callbacks = [
        keras.callbacks.EarlyStopping(
            "val_loss", patience=options.epochs, restore_best_weights=True
        )
    ]
    if options.time_limit:
        callbacks.append(TimeLimit(options.time_limit))
    # (The batches shuffle themselves.)
    fitting = {"epochs": options.epochs, "callbacks": callbacks, "shuffle": False, "verbose": 2}
    return model.fit(batches, validation_data=dev, **fitting).history


def test(model, pairs, options):
    """Translates the test part, greedily and by beam search; returns outputs and results."""
    searches = {"greedy": {}}
    if options.beam_width > 1:
        beam = {"beam_width": options.beam_width, "length_penalty": options.length_penalty}
        searches["beam"] = beam
    outputs, results = {}, {"bleu": {}, "seconds": {}, "bleu_by_length": {}}
    for name, search in searches.items():
        started = time.monotonic()
        outputs[name] = model.translate(pairs.sources, **search)
        results["seconds"][f"test_{name}"] = round(time.monotonic() - started, 1)
        score = bleu(outputs[name], pairs.targets)
        results["bleu"][name] = score.bleu
        results["bleu_by_length"][name] = bleu_by_length(
            pairs.sources, outputs[name], pairs.targets
        )
        title = name if name == "greedy" else f"beam of {options.beam_width}"
        seconds = results["seconds"][f"test_{name}"]
        print(f"Held-out sentences, {title}: BLEU {score.bleu}, {seconds} s ({score.signature})")
    results["signature"] = score.signature
    return outputs, results


def show(pairs, outputs):
    for source, reference, output in zip(*pairs.take(SHOWN), outputs, strict=False):
        print(f"  {source}\n    model:     {output}\n    reference: {reference}")


def draw(model, sources, folder):
    """Draws the alignment of the longest of the first sentences that is not too long to read."""
    short = [x for x in sources[:SHOWN] if len(x.split()) <= LONGEST_DRAWN] or sources[:1]
    found = model.translate(max(short, key=len), details=True)
    with whole(folder / "alignment.png") as path:
        plot_alignment(found.attention_scores, found.source_tokens, found.target_tokens, path=path)


def run(options):
    """All of it: `run(parse_options([...]))` returns what is written to results.json."""
    started = time.monotonic()
    name, parts = load_parts(options)
    check_output(options.output)
    parts = parts._replace(
        train=parts.train.take(options.limit), test=parts.test.take(options.test_limit)
    )
    counts = {part: len(pairs.sources) for part, pairs in parts._asdict().items()}
    print(f"Data: {name}, pairs: {', '.join(f'{n:,} {part}' for part, n in counts.items())}.")
    keras.utils.set_random_seed(options.seed)
    kind = options.tokenizer or default_tokenizer()
    source, target = (fit_tokenizer(kind, side, options.vocabulary) for side in parts.train)
    model = build(options, source, target)
    print(
        f"Attention: {options.attention}; {kind}: {source.size:,} and {target.size:,} ids; "
        f"{model.count_params():,} parameters.",
        flush=True,
    )
    trained = time.monotonic()
    history = train(model, parts, options)
    trained = round(time.monotonic() - trained, 1)
    with whole(options.output / "model.keras") as path:
        model.save(path)
    model = keras.models.load_model(options.output / "model.keras")
    outputs, results = test(model, parts.test, options)
    show(parts.test, outputs.get("beam", outputs["greedy"]))
    if options.attention != "none":
        draw(model, parts.test.sources, options.output)
    best = min(history["val_loss"])
    results |= {
        "data": name,
        "pairs": counts,
        "options": {key: _plain(value) for key, value in vars(options).items()},
        "tokenizer": kind,
        "vocabulary": [source.size, target.size],
        "parameters": model.count_params(),
        "history": {key: [round(x, 4) for x in history[key]] for key in ("loss", "val_loss")},
        "best_epoch": history["val_loss"].index(best) + 1,
        "versions": {"keras": keras.__version__, "tensorflow": tf.__version__},
    }
    total = round(time.monotonic() - started, 1)
    results["seconds"] |= {"training": trained, "total": total}
    with whole(options.output / "results.json") as path:
        path.write_text(json.dumps(results, indent=1), encoding="utf-8")
    print(f"{trained:.0f} s of training, {total:.0f} s in all; written to {options.output}.")
    return results


def _plain(value):
    return str(value) if isinstance(value, Path) else value


def check_output(folder, written=WRITTEN):
    """Raises where the results would mix with files that this script did not write."""
    check_folder(folder)
    others = sorted(path.name for path in folder.iterdir() if path.name not in written)
    if others:
        raise OutputError(f"--output {folder}: expected a new folder, it holds {others[0]}")


def translate_texts(options):
    """Prints a translation for each text, by the model of an earlier run."""
    model = load_model(options.model)
    search = {"beam_width": options.beam_width, "length_penalty": options.length_penalty}
    texts = [text.lower() for text in options.text]
    for output in model.translate(texts, **(search if options.beam_width > 1 else {})):
        print(output)


def missing_packages(options):
    """What has to be installed first, as a message; None if nothing."""
    if options.text is None:
        for package, purpose in NEEDED.items():
            if importlib.util.find_spec(package) is None:
                return f"{package} is needed {purpose}: pip install {package}"
    if options.tokenizer == "subwords" and default_tokenizer() != "subwords":
        return "--tokenizer subwords needs pip install sentencepiece tensorflow-text"
    return None


def main(arguments=None):
    options = parse_options(arguments, __doc__)
    try:
        if problem := missing_packages(options):
            raise DataError(problem)
        run(options) if options.text is None else translate_texts(options)
    except (DataError, OptionError, OSError, ImportError) as error:
        print(f"translate.py: error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())

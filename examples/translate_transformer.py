"""Translation with a transformer: German to English, or any pairs of sentences.

Trains encoder and decoder as Vaswani et al. (2017) do, with one vocabulary for both sides, averages
the last epochs, saves the model, tests what was saved (BLEU by greedy and by beam search), and
draws the three attentions of one sentence.
"""

import argparse
import json
import re
import sys
import time
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from g2p_options import OneLineErrors, positive
from translate import (
    TimeLimit,
    check_output,
    default_tokenizer,
    missing_packages,
    show,
    test,
    translate_texts,
)
from translate_data import load_parts
from translate_options import above_zero, add_data, add_use, fraction

from keras_attention import (
    AverageCheckpoints,
    EpochCounter,
    MaskedCrossEntropy,
    SubwordTokenizer,
    WarmupCosine,
    WordTokenizer,
    attention_scores_model,
    plot_alignment,
    text_batches,
    transformer,
)
from keras_attention.text import DataError
from keras_attention.whole import whole

LONGEST_DRAWN = 14
DEFAULTS = {"units": 256, "feedforward": 512, "layers": 3, "epochs": 18, "tokens": 1000}
DEFAULTS |= {"vocabulary": 8000, "warmup": 800}
SMOKE = {"units": 32, "feedforward": 64, "layers": 1, "epochs": 2, "tokens": 500}
SMOKE |= {"vocabulary": None, "warmup": 10}
PICTURES = {  # file: the attention in it, and who asks whom
    "attention_encoder.png": ("encoder_{n}/self", "source", "source"),
    "attention_decoder.png": ("decoder/block_{n}/self", "target", "target"),
    "attention_cross.png": ("decoder/block_{n}/cross", "source", "target"),
}
WRITTEN = {"model.keras", "results.json", "training.csv", *PICTURES}


def parse_options(arguments=None):
    parser = OneLineErrors(
        prog="translate_transformer.py",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    add_data(parser.add_argument_group("data"))
    add = parser.add_argument_group("model").add_argument
    add("--units", type=positive, help=f"of all layers (default: {DEFAULTS['units']})")
    add("--feedforward", type=positive, help=f"hidden units (default: {DEFAULTS['feedforward']})")
    add("--layers", type=positive, help=f"of each side (default: {DEFAULTS['layers']})")
    add("--heads", type=positive, default=4, help="(default: 4)")
    add(
        "--position",
        choices=("sinusoidal", "rotary", "alibi", "relative"),
        default="sinusoidal",
        help="how positions are known (default: sinusoidal)",
    )
    add(
        "--normalization",
        choices=("layer", "rms"),
        default="rms",
        help="before each sub-layer; layer norm takes more time (default: rms)",
    )
    add(
        "--vocabulary", type=positive, help=f"ids of both sides (default: {DEFAULTS['vocabulary']})"
    )
    add("--dropout", type=fraction, default=0.2, help="(default: %(default)s)")
    add("--attention-dropout", type=fraction, default=0.1, help="(default: %(default)s)")
    add = parser.add_argument_group("training").add_argument
    add("--epochs", type=positive, help=f"(default: {DEFAULTS['epochs']})")
    add("--tokens", type=positive, help=f"of a batch, padded (default: {DEFAULTS['tokens']})")
    add("--learning-rate", type=above_zero, default=1e-3, help="the peak (default: %(default)s)")
    add("--warmup", type=positive, help=f"steps up to the peak (default: {DEFAULTS['warmup']})")
    add("--average", type=positive, default=5, help="the last epochs averaged (default: 5)")
    add("--dtype", default="float32", help="dtype policy, e.g. mixed_bfloat16 (default: float32)")
    add("--resume", type=Path, metavar="DIR", help="folder to go on from after a kill")
    add("--time-limit", type=above_zero, metavar="MINUTES", help="begins no epoch that ends later")
    add("--seed", type=int, default=1, help="of all random numbers (default: 1)")
    add_use(parser.add_argument_group("search and output"), Path("build/translate_transformer"))
    options = parser.parse_args(arguments)
    if (options.text is None) != (options.model is None):
        parser.error("--text and --model go together: what to translate, and with what")
    for name, value in (SMOKE if options.smoke else DEFAULTS).items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    if options.units % options.heads:
        parser.error(f"--heads must divide --units, {options.units}. Got {options.heads}")
    options.tokenizer = default_tokenizer()
    return options


def fit_tokenizers(pairs, size):
    """One subword vocabulary for both sides, or, without the packages for it, words of each."""
    if default_tokenizer() == "words":
        return [WordTokenizer.fit(side, max_size=size or 8000, lowercase=True) for side in pairs]
    try:
        return SubwordTokenizer.fit_pair(*pairs, size or 8000, lowercase=True, model_type="bpe")
    except ValueError as error:
        most = re.search(r"at most (\d+)", str(error))  # few texts hold few subwords
        if size or not most:
            raise DataError(f"--vocabulary {size}: {error}") from None
        most = int(most[1])
        return SubwordTokenizer.fit_pair(*pairs, most, lowercase=True, model_type="bpe")


def build(options, source, target):
    return transformer(
        source,
        target,
        layers=options.layers,
        units=options.units,
        num_heads=options.heads,
        feedforward_size=options.feedforward,
        position=options.position,
        normalization=options.normalization,
        dropout=options.dropout,
        attention_dropout=options.attention_dropout,
        tied_embeddings="all" if isinstance(source, SubwordTokenizer) else True,
    )


def train(model, parts, options):
    """Fits the model and leaves it with the mean of its last epochs; returns the history."""
    tokenizers = model.inference.source, model.inference.target
    counter = EpochCounter()
    batches = text_batches(
        *parts.train,
        *tokenizers,
        tokens_per_batch=options.tokens,
        max_length=options.tokens - 2,
        seed=options.seed,
        epoch=counter,
        length_multiple=4,  # few shapes: kernels are made for each
    )
    dev = text_batches(*parts.dev, *tokenizers, shuffle=False)
    steps = options.epochs * len(batches)
    rate = WarmupCosine(options.learning_rate, min(options.warmup, steps // 2), steps)
    model.compile(
        keras.optimizers.Adam(rate, beta_2=0.98, epsilon=1e-9, global_clipnorm=1.0),
        MaskedCrossEntropy(label_smoothing=0.1),
        jit_compile=False,  # batches come in many lengths, each of which would be compiled
    )
    callbacks = [
        keras.callbacks.CSVLogger(options.output / "training.csv", append=bool(options.resume)),
        counter,
    ]
    if options.time_limit:
        callbacks.append(TimeLimit(options.time_limit))
    folder = options.resume and options.resume / "epochs"
    callbacks.append(AverageCheckpoints(options.average, folder))
    if options.resume:
        callbacks.append(keras.callbacks.BackupAndRestore(options.resume / "backup"))
    fitting = {"epochs": options.epochs, "callbacks": callbacks, "shuffle": False, "verbose": 2}
    return model.fit(batches, validation_data=dev, **fitting).history


def draw(model, sources, options):
    """Draws the attentions of the last layers for the longest of a few short sentences."""
    short = [x for x in sources[:20] if len(x.split()) <= LONGEST_DRAWN] or sources[:1]
    found = model.translate(max(short, key=len), details=True)
    ids = model.inference.source.encode(max(short, key=len), add_end=True)
    target = np.asarray(model.inference.target.encode(found.text, add_start=True, add_end=True))
    scores = attention_scores_model(model)([np.asarray(ids), target[:, :-1]])
    tokens = {
        "source": found.source_tokens,
        "target": [x.decode() for x in model.inference.target.tokens_of(target[0, :-1]).numpy()],
    }
    for file, (name, keys, queries) in PICTURES.items():
        weights = np.asarray(scores[name.format(n=options.layers)])[0]
        with whole(options.output / file) as path:
            plot_alignment(weights, tokens[keys], tokens[queries], path=path)


def run(options):
    """All of it: `run(parse_options([...]))` returns what is written to results.json."""
    started = time.monotonic()
    name, parts = load_parts(options)
    check_output(options.output, WRITTEN)
    parts = parts._replace(
        train=parts.train.take(options.limit), test=parts.test.take(options.test_limit)
    )
    counts = {part: len(pairs.sources) for part, pairs in parts._asdict().items()}
    print(f"Data: {name}, pairs: {', '.join(f'{n:,} {part}' for part, n in counts.items())}.")
    keras.utils.set_random_seed(options.seed)
    keras.config.set_dtype_policy(options.dtype)
    source, target = fit_tokenizers(parts.train, options.vocabulary)
    model = build(options, source, target)
    print(
        f"{options.tokenizer}: {source.size:,} and {target.size:,} ids; "
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
    draw(model, parts.test.sources, options)
    results |= {
        "data": name,
        "pairs": counts,
        "options": {k: str(v) if isinstance(v, Path) else v for k, v in vars(options).items()},
        "vocabulary": [source.size, target.size],
        "parameters": model.count_params(),
        "history": {key: [round(x, 4) for x in history[key]] for key in ("loss", "val_loss")},
        "versions": {"keras": keras.__version__, "tensorflow": tf.__version__},
    }
    total = round(time.monotonic() - started, 1)
    results["seconds"] |= {"training": trained, "total": total}
    with whole(options.output / "results.json") as path:
        path.write_text(json.dumps(results, indent=1), encoding="utf-8")
    print(f"{trained:.0f} s of training, {total:.0f} s in all; written to {options.output}.")
    return results


def main(arguments=None):
    options = parse_options(arguments)
    try:
        if problem := missing_packages(options):
            raise DataError(problem)
        run(options) if options.text is None else translate_texts(options)
    except (DataError, OSError, ImportError) as error:
        print(f"translate_transformer.py: error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""A language model: learns which character comes next, and continues texts.

Trains the decoder of a transformer on Python's own documentation, or on any text, tests it on the
end of the text, which it has not seen, saves it, and lets what was saved continue a prompt.
"""

import argparse
import json
import sys
import time
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from command_line import load_model, unicode_text
from g2p_options import OneLineErrors, positive
from language_plain import plain_model
from language_text import load_text
from language_train import test, train_epochs, train_minutes
from translate import check_output
from translate_options import above_zero, at_least_zero, fraction

from keras_attention import ByteTokenizer, CharacterTokenizer, causal_lm
from keras_attention.text import PAD, START, UNKNOWN, DataError
from keras_attention.whole import whole

DEFAULTS = {"units": 128, "feedforward": 512, "layers": 4, "length": 128, "batch_size": 32}
DEFAULTS |= {"epochs": 15, "limit": None, "characters": 400}
SMOKE = {"units": 32, "feedforward": 64, "layers": 2, "length": 32, "batch_size": 32}
SMOKE |= {"epochs": 2, "limit": 20_000, "characters": 60}
PROMPT = 32  # characters of the held-out text that are continued if no prompt is given
WRITTEN = {"model.keras", "results.json"}
EXAMPLES = """\
examples:
  language_model.py                     Python's documentation, 15 epochs
  language_model.py --data input.txt.gz --time-limit 15 --plain
                                        another text, 15 minutes, and 15 minutes more for a
                                        model of keras.layers
  language_model.py --model build/language_model --prompt "The for statement" "def "
                                        continues texts with the model of an earlier run"""


def parse_options(arguments=None):
    parser = OneLineErrors(
        prog="language_model.py",
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    add_data(parser.add_argument_group("data").add_argument)
    add_model(parser.add_argument_group("model").add_argument)
    add_training(parser.add_argument_group("training").add_argument)
    add_use(parser.add_argument_group("continuation and output").add_argument)
    options = parser.parse_args(arguments)
    for name, value in (SMOKE if options.smoke else DEFAULTS).items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    if options.units % (2 * options.heads):
        parser.error(
            f"--units must be an even number for each of --heads {options.heads}. "
            f"Got {options.units}"
        )
    if options.plain and options.time_limit is None:
        parser.error("--plain needs --time-limit, the minutes that each of the two models trains")
    if options.model and not options.prompt:
        parser.error("--model goes with --prompt, the texts to continue")
    return options


def add_data(add):
    add("--data", type=Path, metavar="FILE", help="text, UTF-8, plain, .gz or .xz\n"
        "(default: the help topics of Python, pydoc_data.topics)")  # fmt: skip
    add("--limit", type=positive, help="characters of the text (default: all)")
    add(
        "--tokenizer",
        choices=("characters", "bytes"),
        default="characters",
        help="what is predicted (default: %(default)s)",
    )
    add("--smoke", action="store_true", help="tries everything in seconds, on little text")


def add_model(add):
    add("--units", type=positive, help=f"of all layers (default: {DEFAULTS['units']})")
    add("--feedforward", type=positive, help=f"hidden units (default: {DEFAULTS['feedforward']})")
    add("--layers", type=positive, help=f"(default: {DEFAULTS['layers']})")
    add("--heads", type=positive, default=4, help="(default: %(default)s)")
    add(
        "--position",
        choices=("rotary", "alibi", "relative", "sinusoidal"),
        default="rotary",
        help="how positions are known (default: %(default)s)",
    )
    add("--dropout", type=fraction, default=0.1, help="(default: %(default)s)")
    add("--attention-dropout", type=fraction, default=0.0, help="(default: %(default)s)")


def add_training(add):
    add(
        "--length",
        type=positive,
        help=f"tokens read at a time, and seen at most (default: {DEFAULTS['length']})",
    )
    add("--batch-size", type=positive, help=f"(default: {DEFAULTS['batch_size']})")
    add("--epochs", type=positive, help=f"(default: {DEFAULTS['epochs']})")
    add(
        "--time-limit",
        type=above_zero,
        metavar="MINUTES",
        help="train so long instead of --epochs; the learning rate follows the clock",
    )
    add(
        "--plain",
        action="store_true",
        help="train a model of keras.layers beside it for the same time, in turns",
    )
    add("--learning-rate", type=above_zero, default=2e-3, help="the peak (default: %(default)s)")
    add("--warmup", type=positive, default=200, help="steps up to the peak (default: %(default)s)")
    add("--dtype", default="float32", help="dtype policy, e.g. mixed_bfloat16 (default: float32)")
    add("--seed", type=int, default=1, help="of all random numbers (default: %(default)s)")


def add_use(add):
    add(
        "--prompt",
        type=unicode_text,
        nargs="+",
        metavar="TEXT",
        help="texts to continue (default: held-out text)",
    )
    add(
        "--characters",
        type=positive,
        help=f"tokens to add to each prompt (default: {DEFAULTS['characters']})",
    )
    add(
        "--temperature",
        type=at_least_zero,
        default=0.8,
        help="below 1: likelier characters oftener, 0: always the likeliest (default: %(default)s)",
    )
    add("--top-k", type=positive, default=40, help="the likeliest to draw from (default: 40)")
    add(
        "--output",
        type=Path,
        default=Path("build/language_model"),
        metavar="DIR",
        help="folder for model.keras and results.json (default: %(default)s)",
    )
    add("--model", type=Path, metavar="DIR", help="the output folder of a run, to use its model")


def build(options, tokenizer):
    """The model; its heads see `options.length` tokens in use too, as far as they learned to."""
    return causal_lm(
        tokenizer,
        layers=options.layers,
        units=options.units,
        num_heads=options.heads,
        feedforward_size=options.feedforward,
        position=options.position,
        dropout=options.dropout,
        attention_dropout=options.attention_dropout,
        attention_options={"sliding_window": options.length},
    )


def train(model, parts, ids, options):
    """Trains the model, and a plain one beside it if asked for; returns both results."""
    models = {"ours": model}
    if options.plain:
        keras.utils.set_random_seed(options.seed)
        models["plain"] = plain_model(options, model.tokenizer.size)
        print(f"The model of keras.layers: {models['plain'].count_params():,} parameters.")
    if options.time_limit:
        losses = train_minutes(models, ids.train, options)
    else:
        history = train_epochs(model, *ids, options)
        losses = {"ours": history["loss"]}
    return {
        name: {
            "parameters": each.count_params(),
            "steps": int(each.optimizer.iterations),
            "losses": [round(loss, 4) for loss in losses[name]],
            "held_out": test(each, model.tokenizer, parts.held_out, ids.held_out, options),
        }
        for name, each in models.items()
    }


def continue_texts(model, prompts, options):
    """Prints and returns each prompt with what the model adds."""
    texts = model.generate(
        prompts,
        options.characters,
        temperature=options.temperature,
        top_k=options.top_k,
        seed=options.seed,
        forbidden_tokens=(PAD, START, UNKNOWN),
    )
    for text in texts:
        print(f"---\n{text}")
    print("---")
    return texts


def run(options):
    """All of it: `run(parse_options([...]))` returns what is written to results.json."""
    started = time.monotonic()
    name, parts = load_text(options)
    check_output(options.output, WRITTEN)
    keras.utils.set_random_seed(options.seed)
    keras.config.set_dtype_policy(options.dtype)
    tokenizer = ByteTokenizer()
    if options.tokenizer == "characters":
        tokenizer = CharacterTokenizer.fit([parts.train], normalization=None)
    ids = parts._replace(
        **{part: np.asarray(tokenizer.encode([x]))[0] for part, x in parts._asdict().items()}
    )
    model = build(options, tokenizer)
    print(
        f"Data: {name}, {len(parts.train):,} characters to learn, {len(parts.held_out):,} others "
        f"to test on.\n{tokenizer.size:,} ids, {model.count_params():,} parameters.",
        flush=True,
    )
    trained = time.monotonic()
    results = train(model, parts, ids, options)
    trained = round(time.monotonic() - trained, 1)
    for kind, found in results.items():
        print(
            f"Held-out text, {kind}: {found['held_out']['nats']:.3f} nats, "
            f"{found['held_out']['bits']:.3f} bits a character after {found['steps']:,} steps."
        )
    with whole(options.output / "model.keras") as path:
        model.save(path)
    model = keras.models.load_model(options.output / "model.keras")
    generated = continue_texts(model, options.prompt or [parts.held_out[:PROMPT]], options)
    total = round(time.monotonic() - started, 1)
    results |= {
        "data": name,
        "characters": {part: len(text) for part, text in parts._asdict().items()},
        "options": {k: str(v) if isinstance(v, Path) else v for k, v in vars(options).items()},
        "vocabulary": tokenizer.size,
        "generated": generated,
        "seconds": {"training": trained, "total": total},
        "versions": {"keras": keras.__version__, "tensorflow": tf.__version__},
    }
    with whole(options.output / "results.json") as path:
        path.write_text(json.dumps(results, indent=1, ensure_ascii=False), encoding="utf-8")
    print(f"{trained:.0f} s of training, {total:.0f} s in all; written to {options.output}.")
    return results


def use(options):
    """Continues texts with the model of an earlier run."""
    model = load_model(options.model)
    continue_texts(model, options.prompt, options)


def main(arguments=None):
    options = parse_options(arguments)
    try:
        use(options) if options.model else run(options)
    except (DataError, OSError) as error:
        print(f"language_model.py: error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())

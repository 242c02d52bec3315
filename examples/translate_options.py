"""Command line of translate.py."""

import argparse
import math
from pathlib import Path

from attentions import add_attention
from command_line import unicode_text
from g2p_options import OneLineErrors, positive
from translate_data import CACHE

TOKENIZERS = ("subwords", "words", "characters")
# What --smoke uses where the command line says nothing else.
DEFAULTS = {"units": 256, "embedding": 256, "epochs": 10, "batch_size": 64}
SMOKE = {"units": 32, "embedding": 32, "epochs": 2, "batch_size": 32}


def number(expected, holds):
    """A type of options: numbers for which `holds`."""

    def convert(text):
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value) or not holds(value):
            raise argparse.ArgumentTypeError(f"expected {expected}, got {text!r}")
        return value

    return convert


fraction = number("a number from 0 to below 1", lambda x: 0 <= x < 1)
above_zero = number("a number above 0", lambda x: x > 0)
at_least_zero = number("a number of at least 0", lambda x: x >= 0)


def parse_options(arguments=None, description=None):
    """The options of `translate.run`, from a list of str."""
    parser = OneLineErrors(
        prog="translate.py",
        description=description,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    add_data(parser.add_argument_group("data"))
    _add_model(parser.add_argument_group("model"))
    _add_training(parser.add_argument_group("training"))
    add_use(parser.add_argument_group("search and output"))
    options = parser.parse_args(arguments)
    if (options.text is None) != (options.model is None):
        parser.error("--text and --model go together: what to translate, and with what")
    for name, value in (SMOKE if options.smoke else DEFAULTS).items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    if options.units % 2:
        parser.error(f"--units must be even, for an encoder of two directions. Got {options.units}")
    return options


def add_data(group):
    add = group.add_argument
    data = group.add_mutually_exclusive_group().add_argument
    data(
        "--data",
        type=Path,
        metavar="DIR",
        help="folder with train, val and test_2016_flickr, each .de and .en,\n"
        "plain or .gz (default: Multi30k, fetched from its public address)",
    )
    data(
        "--pairs",
        type=Path,
        metavar="FILE",
        help="lines 'source<TAB>target' as of Tatoeba, plain, .gz or in a .zip;\n"
        "split by a hash of the source",
    )
    add("--swap", action="store_true", help="translate the second column of --pairs to the first")
    add("--cache", type=Path, default=CACHE, metavar="DIR", help="where fetched files are kept")
    add("--limit", type=positive, help="number of training pairs (default: all)")
    add("--test-limit", type=positive, help="number of sentences to test on (default: all)")
    add("--smoke", action="store_true", help="tries everything in seconds, on generated sentences")


def _add_model(group):
    add = group.add_argument
    add_attention(group)
    add("--units", type=positive, help=f"(default: {DEFAULTS['units']})")
    add("--embedding", type=positive, help=f"(default: {DEFAULTS['embedding']})")
    add("--layers", type=positive, default=1, help="of encoder and of decoder (default: 1)")
    add("--dropout", type=fraction, default=0.3, help="(default: %(default)s)")
    add("--tied-embeddings", action="store_true", help="embeddings of the target make the logits")
    add(
        "--tokenizer",
        choices=TOKENIZERS,
        help="(default: subwords if sentencepiece is installed, else words)",
    )
    add("--vocabulary", type=positive, help="ids of each side (default: at most 8000)")


def _add_training(group):
    add = group.add_argument
    add("--epochs", type=positive, help=f"(default: {DEFAULTS['epochs']})")
    add("--batch-size", type=positive, help=f"(default: {DEFAULTS['batch_size']})")
    add("--learning-rate", type=above_zero, default=0.002, help="(default: %(default)s)")
    add(
        "--scheduled-sampling",
        type=fraction,
        default=0.0,
        metavar="P",
        help="share of target tokens replaced by the model's own (default: 0)",
    )
    add(
        "--time-limit",
        type=above_zero,
        metavar="MINUTES",
        help="no epoch begins that would not be over by then",
    )
    add("--seed", type=int, default=1, help="of all random numbers (default: 1)")


def add_use(group, output=Path("build/translate")):
    add = group.add_argument
    add("--beam-width", type=positive, default=5, help="(default: %(default)s)")
    add(
        "--length-penalty",
        type=at_least_zero,
        default=1.0,
        help="exponent of the length by which scores are divided (default: %(default)s)",
    )
    add(
        "--output",
        type=Path,
        default=output,
        metavar="DIR",
        help="folder for model.keras, alignment.png and results.json (default: %(default)s)",
    )
    add("--model", type=Path, metavar="DIR", help="the output folder of a run, to use its model")
    add(
        "--text",
        type=unicode_text,
        nargs="+",
        help="texts to translate by --model, without training",
    )

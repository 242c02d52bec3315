"""Command line of g2p.py."""

import argparse
from pathlib import Path

from g2p_data import BUNDLED
from g2p_model import ATTENTIONS
from g2p_recipe import (
    BUNDLED_WORDS,
    LARGE,
    RECIPES,
    SMALL,
    SMALL_WORDS,
    TRANSFORMER_LARGE,
    TRANSFORMER_SMALL,
)


class OneLineErrors(argparse.ArgumentParser):
    """A parser whose errors are one line; --help has the usage."""

    def error(self, message):
        self.exit(2, f"{self.prog}: error: {message}\n")


def positive(text):
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number <= 0:
        raise argparse.ArgumentTypeError(f"expected an integer above 0, got {text!r}")
    return number


def parse_options(arguments, description):
    parser = OneLineErrors(
        prog="g2p.py", description=description, formatter_class=argparse.RawTextHelpFormatter
    )
    add = parser.add_argument
    add(
        "--model",
        choices=tuple(RECIPES),
        default="recurrent",
        help="encoder and decoder: recurrent ones with --attention, or a transformer's\n"
        "(default: %(default)s)",
    )
    add(
        "--attention",
        choices=ATTENTIONS,
        help="bahdanau: attends before the recurrent cell; dot, general, concat, location:\n"
        "Luong's scores, after it; local-m, local-p: general, in a window around\n"
        "step t or a predicted place; none: the encoder's last state is all the decoder\n"
        "sees (default: dot)",
    )
    add(
        "--input-feeding",
        action="store_true",
        help="feed the output of a step into the next (not with bahdanau and none)",
    )
    add(
        "--beam-width",
        type=positive,
        default=5,
        help="test with a beam of this width too; 1: greedy search only (default: %(default)s)",
    )
    add(
        "--full",
        action="store_true",
        help="all of CMUdict, more epochs and a larger model, tested on all held-out words",
    )
    add(
        "--epochs",
        type=positive,
        help=f"passes over the training words (default: {SMALL.epochs} below {SMALL_WORDS:,} "
        f"training words, else {LARGE.epochs};\nof a transformer {TRANSFORMER_SMALL.epochs} and "
        f"{TRANSFORMER_LARGE.epochs})",
    )
    add(
        "--limit",
        type=positive,
        help=f"number of training words (default: {BUNDLED_WORDS:,} of the bundled data, all of "
        "other data)",
    )
    add(
        "--data",
        type=Path,
        default=BUNDLED,
        help="file of lines 'word<TAB>phones separated by spaces', also .xz or .gz. Split by a\n"
        "hash of the word, unless X_train.tsv has X_dev.tsv and X_test.tsv beside it\n"
        "(default: the bundled CMUdict)",
    )
    add("--dev-data", type=Path, help="dev words, to choose the best epoch by")
    add("--test-data", type=Path, help="held-out words to test on")
    add(
        "--eval-words",
        type=positive,
        help="number of held-out words to test on, at most (default: 2,000; with --full all)",
    )
    add(
        "--output",
        type=Path,
        default=Path("build/g2p"),
        help="folder for model.keras, vocabulary.json, saved_model, alignment.png and\n"
        "results.json (default: %(default)s)",
    )
    add("--seed", type=int, default=1, help="of all random numbers (default: %(default)s)")
    add("--smoke", action="store_true", help="a few words, one epoch: tries the script in seconds")
    options = parser.parse_args(arguments)
    if options.model == "transformer":
        if options.attention or options.input_feeding:
            parser.error("--attention and --input-feeding go with --model recurrent only")
        options.attention = "multi-head"
    options.attention = options.attention or "dot"
    if options.input_feeding and options.attention in ("bahdanau", "none"):
        parser.error(f"--input-feeding does not go with --attention {options.attention}")
    return options

"""Command line of the examples that learn from generated pairs of strings."""

import argparse
from pathlib import Path

from attentions import add_attention
from command_line import unicode_text
from g2p_options import OneLineErrors, positive


def make_parser(script, description, epilog, defaults):
    """A parser with the options that these examples share.

    Args:
        script: name of the script, without ".py"; it also names the output folder.
        description, epilog: texts of --help.
        defaults: dictionary of the values of `units`, `examples` and `epochs`.
    """
    parser = OneLineErrors(
        prog=f"{script}.py",
        description=description,
        epilog=epilog,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    add_attention(parser)
    add = parser.add_argument
    add("--units", type=positive, help="size of encoder and decoder (default: %(default)s)")
    add("--examples", type=positive, help="pairs to learn from (default: %(default)s)")
    add("--epochs", type=positive, help="passes over these pairs (default: %(default)s)")
    add("--seed", type=int, default=1, help="of all random numbers (default: %(default)s)")
    add(
        "--output",
        type=Path,
        default=Path("build") / script,
        help="folder for model.keras, results.json and pictures (default: %(default)s)",
    )
    add("--smoke", action="store_true", help="tiny sizes: tries the script in seconds")
    add(
        "--text",
        type=unicode_text,
        nargs="+",
        metavar="TEXT",
        help="learns nothing, answers these texts with a model saved before",
    )
    add(
        "--model",
        type=Path,
        metavar="DIR",
        help="folder of the model that answers --text (default: that of --output)",
    )
    parser.set_defaults(**defaults)
    return parser


def parse(parser, arguments, smoke):
    """Options from a list of str.

    Args:
        parser: as of `make_parser`.
        arguments: list of str, or None for those of the process.
        smoke: dictionary of the defaults that --smoke has instead.
    """
    options = parser.parse_args(arguments)
    if options.smoke:  # what is given explicitly stays
        parser.set_defaults(**smoke)
        options = parser.parse_args(arguments)
    if options.units % 2:
        parser.error(f"--units {options.units}: expected an even number, for two directions")
    if options.model and not options.text:
        parser.error("--model goes with --text, the texts that the model is to answer")
    return options

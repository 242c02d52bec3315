"""Reversing strings: why a vector of fixed size is not enough.

Learns to reverse strings of random letters up to one length, and is tested on strings up to twice
as long, by length. Without attention the whole string has to fit into the encoder's last state.
With attention the decoder looks at the letter that it needs: the alignment that is drawn runs from
the upper right to the lower left. Two kinds fit the task badly, and it shows: local-m looks around
place t at step t, and location has no weights for places that it never saw in training.
"""

import random
import string
import sys

import toy_tasks
from g2p_options import positive
from toy_options import make_parser, parse
from toy_tasks import Task, every_few

DEFAULTS = {"units": 128, "examples": 20000, "epochs": 4, "train_length": 30, "test_length": 60}
SMOKE = {"units": 16, "examples": 256, "epochs": 1, "train_length": 5, "test_length": 10}
TESTS_PER_LENGTH, DRAWN_LENGTH = 20, 12
EXAMPLES = """\
examples:
  reverse.py                            dot attention, lengths 1 to 30, tested up to 60
  reverse.py --attention none           the same without attention
  reverse.py --attention local-p --output build/reverse-local-p
  reverse.py --text attention keras     answers with the model of build/reverse
"""


def random_string(generator, length):
    return "".join(generator.choices(string.ascii_lowercase, k=length))


def buckets(train_length, test_length):
    """Spans of lengths `(first, last)`; none has both lengths trained on and longer ones."""
    size = -(-train_length // 3)
    spans = []
    for start, stop in ((1, train_length), (train_length + 1, test_length)):
        spans += [(i, min(i + size - 1, stop)) for i in range(start, stop + 1, size)]
    return spans


def test_strings(generator, length):
    """Distinct strings of a length; at most half of all that there are."""
    count = min(TESTS_PER_LENGTH, len(string.ascii_lowercase) ** length // 2)
    found = {}  # a set that keeps the order
    while len(found) < count:
        found[random_string(generator, length)] = None
    return list(found)


def make_task(options):
    """Strings and their reverses, the same ones for the same seed."""
    generator = random.Random(options.seed)
    lengths = range(1, options.test_length + 1)
    held_out = {length: test_strings(generator, length) for length in lengths}
    barred = {text for texts in held_out.values() for text in texts}
    train = []
    while len(train) < options.examples:
        text = random_string(generator, generator.randint(1, options.train_length))
        if text not in barred:
            train.append((text, text[::-1]))
    test = {
        f"{first}-{last}": [
            (text, text[::-1]) for length in range(first, last + 1) for text in held_out[length]
        ]
        for first, last in buckets(options.train_length, options.test_length)
    }
    known = [
        (text, text[::-1])
        for length in range(1, options.train_length + 1)
        for text in held_out[length]
    ]
    shown = held_out[min(DRAWN_LENGTH, options.train_length)][0]
    return Task(
        f"Reversing strings of 1 to {options.train_length} letters",
        "length",
        train,
        test,
        every_few(known),
        {"alignment": (shown, shown[::-1])},
    )


def parse_options(arguments=None):
    parser = make_parser("reverse", __doc__, EXAMPLES, DEFAULTS)
    lengths = {"type": positive, "metavar": "N"}
    parser.add_argument(
        "--train-length", **lengths, help="the longest string learned (default: %(default)s)"
    )
    parser.add_argument(
        "--test-length", **lengths, help="the longest string tested (default: %(default)s)"
    )
    parser.set_defaults(**DEFAULTS)
    options = parse(parser, arguments, SMOKE)
    if options.test_length < options.train_length:
        parser.error(
            f"--test-length {options.test_length}: expected at least the --train-length, "
            f"{options.train_length}"
        )
    return options


if __name__ == "__main__":
    sys.exit(toy_tasks.main("reverse", make_task, parse_options()))

"""Addition of numbers written as text: "12+345" -> "357".

Learns from sums of numbers of random numbers of digits. A pair of numbers that is tested is never
learned from, in neither order. Accuracy is told by the digits of the larger number.
"""

import random
import sys

import toy_tasks
from g2p_options import positive
from toy_options import make_parser, parse
from toy_tasks import Task, every_few

DEFAULTS = {"units": 128, "examples": 50000, "epochs": 6, "digits": 3}
SMOKE = {"units": 16, "examples": 256, "epochs": 1, "digits": 2}
TESTS_PER_SIZE = 500
EXAMPLES = """\
examples:
  addition.py                           numbers of up to 3 digits
  addition.py --attention none          the same without attention
  addition.py --digits 4 --examples 60000 --output build/addition-4
  addition.py --text 12+345 7+8         answers with the model of build/addition
"""


def number(generator, digits):
    """A number of so many digits; 0 has one."""
    return generator.randrange(10 ** (digits - 1) if digits > 1 else 0, 10**digits)


def as_pair(generator, numbers):
    """The text of a sum, its numbers in random order, and the answer."""
    a, b = generator.sample(numbers, 2)
    return f"{a}+{b}", str(a + b)


def test_numbers(generator, digits):
    """Distinct pairs of numbers, the larger of so many digits; at most a tenth of all pairs."""
    smaller = 10 ** (digits - 1) if digits > 1 else 0
    all_pairs = (10**digits * (10**digits + 1) - smaller * (smaller + 1)) // 2
    found = {}  # a set that keeps the order
    while len(found) < min(TESTS_PER_SIZE, all_pairs // 10):
        sizes = digits, generator.randint(1, digits)
        found[tuple(sorted(number(generator, size) for size in sizes))] = None
    return list(found)


def make_task(options):
    """Sums and their answers, the same ones for the same seed."""
    generator = random.Random(options.seed)
    sizes = range(1, options.digits + 1)
    held_out = {size: test_numbers(generator, size) for size in sizes}
    barred = {pair for pairs in held_out.values() for pair in pairs}
    train = []
    while len(train) < options.examples:
        numbers = tuple(sorted(number(generator, generator.choice(sizes)) for _ in range(2)))
        if numbers not in barred:
            train.append(as_pair(generator, numbers))
    test = {
        str(size): [as_pair(generator, pair) for pair in pairs] for size, pairs in held_out.items()
    }
    title = f"Adding numbers of up to {options.digits} digits"
    watched = every_few([pair for pairs in test.values() for pair in pairs])
    return Task(title, "digits", train, test, watched, {"alignment": test[str(options.digits)][0]})


def parse_options(arguments=None):
    parser = make_parser("addition", __doc__, EXAMPLES, DEFAULTS)
    parser.add_argument(
        "--digits", type=positive, help="the most digits of a number (default: %(default)s)"
    )
    parser.set_defaults(**DEFAULTS)
    return parse(parser, arguments, SMOKE)


if __name__ == "__main__":
    sys.exit(toy_tasks.main("addition", make_task, parse_options()))

"""Nested lists of digits and what they evaluate to, like those of Nangia and Bowman (2018).

    [ MAX 2 9 [ MIN 4 7 ] 0 ]   is 9

MED is the median (of an even number of values the lower one of the middle two), SUM the sum
modulo 10: each value is a digit.
"""

import random
import re
import statistics
from typing import NamedTuple

from keras_attention.text import DataError

OPERATORS = {
    "MAX": max,
    "MIN": min,
    "MED": statistics.median_low,
    "SUM": lambda values: sum(values) % 10,
}
DIGITS = tuple("0123456789")
MOST_VALUES, NESTED, LONGEST = 5, 0.3, 50  # in a list; share of them that are lists; tokens
DEEPEST = 100  # lists in lists that are read


class Example(NamedTuple):
    """An expression, its value, how deeply its lists are nested, and its number of tokens."""

    text: str
    value: str
    depth: int
    length: int


def draw(generator, depth):
    """A random expression of this depth, as a nested list `[operator, value, ...]`."""
    values = [
        draw(generator, generator.randint(1, depth - 1))
        if depth > 1 and generator.random() < NESTED
        else generator.randrange(10)
        for _ in range(generator.randint(2, MOST_VALUES))
    ]
    if depth > 1:  # one of them makes the depth
        values[generator.randrange(len(values))] = draw(generator, depth - 1)
    return [generator.choice(list(OPERATORS)), *values]


def evaluate(expression):
    if isinstance(expression, int):
        return expression
    operator, *values = expression
    return OPERATORS[operator](list(map(evaluate, values)))


def written(expression):
    if isinstance(expression, int):
        return str(expression)
    return f"[ {' '.join([expression[0], *map(written, expression[1:])])} ]"


def example(generator, depth):
    """A random example of this depth and of at most LONGEST tokens."""
    while True:
        expression = draw(generator, depth)
        text = written(expression)
        if (length := len(text.split())) <= LONGEST:
            return Example(text, str(evaluate(expression)), depth, length)


def examples(seed, count, depths, tests, tested_depths):
    """Examples to learn from, and others to test on: the same ones for the same seed.

    Args:
        seed: of the random numbers.
        count: how many to learn from.
        depths: learned are depths 1 to this one, equally often.
        tests: how many to test on, of each depth.
        tested_depths: tested are depths 1 to this one.

    Returns:
        Two lists of `Example`. What is tested is not learned.
    """
    generator = random.Random(seed)
    held_out = {}
    for depth in range(1, tested_depths + 1):
        for _ in range(tests):
            found = example(generator, depth)
            held_out[found.text] = found
    train = []
    while len(train) < count:
        found = example(generator, generator.randint(1, depths))
        if found.text not in held_out:
            train.append(found)
    return train, list(held_out.values())


def parse(text):
    """The expression that a text is, spaces or not; a `DataError` says what is wrong with it."""
    tokens = re.findall(r"\[|\]|[A-Za-z]+|\d|\S", text)[::-1]
    expression = _read(tokens, text)
    if tokens:
        raise DataError(f"{text!r:.80}: expected nothing behind the last ], got {tokens[-1]!r:.9}")
    return expression


def _read(tokens, text, depth=1):
    """The list at the end of the reversed tokens, which is taken off them."""

    def following():
        if not tokens:
            raise DataError(f"{text!r:.80}: expected a ] in each list")
        return tokens.pop()

    if depth > DEEPEST:
        raise DataError(f"{text!r:.80}: expected at most {DEEPEST} lists in each other")
    if tokens[-1:] != ["["]:
        raise DataError(f"{text!r:.80}: expected [ at the start, got {''.join(tokens[-1:])!r:.9}")
    tokens.pop()
    operator = following().upper()
    if operator not in OPERATORS:
        wanted = ", ".join(OPERATORS)
        raise DataError(f"{text!r:.80}: expected one of {wanted}, got {operator!r:.9}")
    values = []
    while (token := following()) != "]":
        if token == "[":
            tokens.append(token)
            values.append(_read(tokens, text, depth + 1))
        elif token in DIGITS:
            values.append(int(token))
        else:
            raise DataError(f"{text!r:.80}: expected a digit, [ or ], got {token!r:.9}")
    if not values:
        raise DataError(f"{text!r:.80}: expected values in each list")
    return [operator, *values]

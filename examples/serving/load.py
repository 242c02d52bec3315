"""Puts a model server under load: some clients at once, each asks again once it is answered.

    python load.py --model translate --clients 16 --seconds 30 --text "ein Hund"

Prints requests a second and the times that half, and 99 of 100, of them took at most.
"""

import argparse
import itertools
import statistics
import sys
import threading
import time
from typing import NamedTuple

import requests
from client import Client, ServerError


class Load(NamedTuple):
    """What came of it: rates a second, times in milliseconds, and what went wrong."""

    requests: int
    per_second: float
    p50: float
    p99: float
    errors: list
    wrong: list

    def __str__(self):
        return (
            f"{self.per_second:.0f} requests a second, p50 {self.p50:.1f} ms, "
            f"p99 {self.p99:.1f} ms ({self.requests} requests, {len(self.errors)} errors, "
            f"{len(self.wrong)} wrong answers)"
        )


def put_under_load(url, model, texts, clients=16, seconds=30.0, expected=None):
    """Asks for one text a request, another one each time.

    Args:
        url, model: as of `Client`.
        texts: list of str.
        clients: number of threads.
        seconds: how long.
        expected: dictionary from text to its translation, to tell wrong answers; or None.

    Returns:
        A `Load`.
    """
    times, errors, wrong = [], [], []
    end = time.monotonic() + seconds

    def run(first):
        client = Client(url, model)
        for place in itertools.count(first):
            if time.monotonic() > end:
                return
            text = texts[place % len(texts)]
            started = time.perf_counter()
            try:
                (row,) = client.predict([text])
            except (ServerError, requests.RequestException) as error:
                errors.append(str(error))
                continue
            times.append(1000 * (time.perf_counter() - started))
            if expected is not None and row["translation"] != expected[text]:
                wrong.append((text, row["translation"], expected[text]))

    threads = [threading.Thread(target=run, args=(7 * n,)) for n in range(clients)]
    started = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took = time.monotonic() - started
    if len(times) < 2:
        return Load(len(times), 0.0, float("nan"), float("nan"), errors, wrong)
    parts = statistics.quantiles(times, n=100)
    return Load(len(times), len(times) / took, parts[49], parts[98], errors, wrong)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--url", default="http://127.0.0.1:8501", help="(default: %(default)s)")
    add("--model", default="model", help="(default: %(default)s)")
    add("--clients", type=int, default=16, help="(default: %(default)s)")
    add("--seconds", type=float, default=30.0, help="(default: %(default)s)")
    add("--text", nargs="+", default=["a"], help="texts to ask in turn (default: a)")
    options = parser.parse_args()
    load = put_under_load(
        options.url, options.model, options.text, options.clients, options.seconds
    )
    print(load)
    for error in load.errors[:3]:
        print(error, file=sys.stderr)
    return 1 if load.errors else 0


if __name__ == "__main__":
    sys.exit(main())

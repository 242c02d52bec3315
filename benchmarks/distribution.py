"""How much faster two processes train than one, and writes the table of docs/distribution.md.

Each process has one thread. The batches are the same: of two processes each reads half of every
batch. Single runs of one and of two processes take turns; the first epoch, in which TensorFlow
compiles, does not count.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs/distribution.md"
START, END = "<!-- scaling -->\n", "<!-- end of scaling -->"
SIZES = ((64, 64), (256, 64), (256, 256))  # units, rows of a batch
EPOCHS, BATCHES = 4, 30


def seconds_of_an_epoch(processes, units, rows):
    """The median over the epochs of one run of examples/distributed/train.py."""
    with tempfile.TemporaryDirectory() as folder:
        options = {
            "--processes": processes,
            "--threads": 1,
            "--units": units,
            "--batch-size": rows,
            "--examples": rows * BATCHES,
            "--epochs": EPOCHS,
            "--output": folder,
        }
        command = [sys.executable, str(ROOT / "examples/distributed/train.py")]
        command += [str(x) for pair in options.items() for x in pair]
        path = f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"
        done = subprocess.run(
            command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True
        )
        if done.returncode:
            sys.exit(done.stderr[-3000:])
        results = json.loads((Path(folder) / "results.json").read_text("utf-8"))
    return statistics.median(results["epoch_seconds"][1:])


def table(sizes, rounds):
    lines = [
        "| units | rows of a batch | one process, ms a batch | two processes | times as fast |",
        "| ---: | ---: | ---: | ---: | ---: |",
    ]
    for units, rows in sizes:
        found = [
            [seconds_of_an_epoch(processes, units, rows) for processes in (1, 2)]
            for _ in range(rounds)
        ]
        one, two = (statistics.median(x) / BATCHES * 1000 for x in zip(*found, strict=True))
        ratio = statistics.median(a / b for a, b in found)
        lines.append(f"| {units} | {rows} | {one:.0f} | {two:.0f} | {ratio:.2f} |")
        print(lines[-1], file=sys.stderr, flush=True)
    return "\n".join(lines)


def positive(text):
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected an integer above 0, got {text!r}")
    return int(text)


def main():
    first, _, rest = __doc__.partition("\n\n")
    parser = argparse.ArgumentParser(description=first, epilog=rest)
    parser.add_argument("--rounds", type=positive, default=3, help="(default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="one size, one round, prints only")
    options = parser.parse_args()
    rounds = 1 if options.quick else options.rounds
    load = os.getloadavg()[0]
    made = table(SIZES[:1] if options.quick else SIZES, rounds)
    said = (
        f"Written by `python benchmarks/distribution.py`, rounds: {rounds}; on {os.cpu_count()} "
        f"cores, {platform.system()}; load of the machine before it began: {load:.1f} (0 is a "
        "quiet one; what else runs takes cores from two processes first)."
    )
    if options.quick:
        print(made)
        return
    before, _, rest = PAGE.read_text("utf-8").partition(START)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{START}{said}\n\n{made}\n{END}{after}", "utf-8")
    print(f"Written to {PAGE}")


if __name__ == "__main__":
    main()

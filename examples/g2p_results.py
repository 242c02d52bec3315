"""Runs g2p.py on SIGMORPHON 2020 data and writes the table of error rates, docs/results.md.

One run after the other, each with three seeds. Finished runs are kept in a JSON file, so that the
script goes on where it was stopped; runs with other settings than today's are made anew. The data
is task 1 of github.com/sigmorphon/2020 (task1/data, CC BY-SA 3.0): 3,600 words a language to
train on, 450 to choose the best epoch by, 450 to test on.
"""

import argparse
import dataclasses
import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import fmean

from g2p_output import whole
from g2p_recipe import SMALL

ROOT = Path(__file__).resolve().parents[1]
LANGUAGES = {"hun": "Hungarian", "ice": "Icelandic", "kor": "Korean"}
CASES = (
    ("hun", "dot"),
    ("hun", "bahdanau"),
    ("ice", "dot"),
    ("ice", "bahdanau"),
    ("ice", "none"),
    ("kor", "dot"),
)
# Gorman et al. 2020, table 2: BiLSTM encoder and Luong attention, one model, test words.
PUBLISHED = {"hun": 5.33, "ice": 10.00, "kor": 46.89}


def key(language, attention, seed):
    return f"{language} {attention} {seed}"


def is_current(run):
    return run is not None and run["recipe"] == dataclasses.asdict(SMALL)


def run_once(data, language, attention, seed):
    """Runs g2p.py in a process of its own; returns the results it wrote."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, Path(__file__).with_name("g2p.py")]
        command += ["--data", data / f"{language}_train.tsv", "--attention", attention]
        command += ["--seed", str(seed), "--output", folder]
        process = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if process.returncode:
            output = process.stdout.decode("utf-8", errors="replace")
            raise RuntimeError(f"{key(language, attention, seed)} failed:\n{output[-2000:]}")
        return json.loads((Path(folder) / "results.json").read_text("utf-8"))


def finish_runs(data, seeds, path):
    """Makes the runs that the JSON file at `path` does not hold; returns all of them."""
    runs = json.loads(path.read_text("utf-8")) if path.exists() else {}
    wanted = [(*case, seed) for seed in seeds for case in CASES]
    for case in wanted:
        name = key(*case)
        if not is_current(runs.get(name)):
            runs[name] = run_once(data, *case)
            with whole(path) as temporary:
                temporary.write_text(json.dumps(runs, indent=1), encoding="utf-8")
        run = runs[name]
        print(
            f"{name}: word error rate {run['word_error']:.2%}, {run['seconds']:.0f} s", flush=True
        )
    return {key(*case): runs[key(*case)] for case in wanted}


def row(language, attention, runs):
    words, phones = ([100 * run[f"{unit}_error"] for run in runs] for unit in ("word", "phoneme"))
    cells = (
        LANGUAGES[language],
        attention,
        f"**{fmean(words):.2f}**",
        ", ".join(f"{value:.2f}" for value in words),
        f"{fmean(phones):.2f}",
        f"{PUBLISHED[language]:.2f}",
        f"{fmean(run['seconds'] for run in runs):.0f}",
    )
    return f"| {' | '.join(cells)} |"


def report(runs, seeds):
    """Returns the text of docs/results.md."""
    used = next(iter(runs.values()))["versions"]
    versions = f"Python {platform.python_version()}, Keras {used['keras']}, "
    versions += f"TensorFlow {used['tensorflow']}"
    machine = f"{os.cpu_count()} CPU cores ({platform.machine()})"
    seed_list = ", ".join(map(str, seeds))
    rows = [
        row(language, attention, [runs[key(language, attention, seed)] for seed in seeds])
        for language, attention in CASES
    ]
    return f"""# Results of the pronunciation example

Word error rates in percent on the 450 test words of SIGMORPHON 2020, task 1 (one word is 0.22
points), greedy search, one model a run. The epoch with the fewest errors on the dev words was
tested. A word is right if its whole pronunciation is. Hangul was split into jamo.

| language | attention | mean | seeds {seed_list} | phoneme error rate | published | seconds |
| --- | --- | --- | --- | --- | --- | --- |
{chr(10).join(rows)}

Published: the BiLSTM encoder with Luong attention of Gorman et al. 2020, "The SIGMORPHON 2020
shared task on multilingual grapheme-to-phoneme conversion", table 2 (Korean: whole syllables).

- Command: `python examples/g2p_results.py --data DIR`, where DIR holds `ice_train.tsv`,
  `ice_dev.tsv`, `ice_test.tsv` and so on. One run of it is
  `python examples/g2p.py --data DIR/ice_train.tsv --attention dot --seed 1`.
- Settings: {SMALL}.
- Versions: {versions}.
- Machine: {machine}, no accelerator. The seconds are the mean of a run, testing and exporting
  included, whatever else the machine was doing.
- Each run by itself: `results.json` beside this file.
"""


def main(arguments=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="folder of ..._train.tsv files")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3], help="(default: 1 2 3)")
    parser.add_argument(
        "--runs",
        type=Path,
        default=ROOT / "docs" / "results.json",
        help="JSON file of finished runs (default: %(default)s)",
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=ROOT / "docs" / "results.md",
        help="file to write (default: %(default)s)",
    )
    options = parser.parse_args(arguments)
    missing = [
        str(file)
        for language in LANGUAGES
        for part in ("train", "dev", "test")
        if not (file := options.data / f"{language}_{part}.tsv").is_file()
    ]
    if missing:
        parser.error(f"--data {options.data}: no such data files: {', '.join(missing)}")
    for path in (options.runs, options.output):
        path.parent.mkdir(parents=True, exist_ok=True)
    text = report(finish_runs(options.data, options.seeds, options.runs), options.seeds)
    with whole(options.output) as temporary:
        temporary.write_text(text, encoding="utf-8")
    print(f"written to {options.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

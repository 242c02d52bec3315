"""Runs the examples whose results are quoted in docs/results.md, one after the other.

What an example writes to results.json is kept in docs/results/NAME.json. Finished runs are left as
they are, so that the script goes on where it was stopped (--again makes them anew).
`python benchmarks/quality/report.py` makes docs/results.md of them.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "examples"))
MULTI30K = [
    "translate.py", "{multi30k}", "--epochs", "7", "--units", "320", "--vocabulary", "4000",
    "--dropout", "0.2", "--learning-rate", "0.003",
]  # fmt: skip
SEEDS = (1, 2, 3)
RUNS = {
    "cmudict-dot": ["g2p.py", "--full"],
    "multi30k-dot": MULTI30K,
    "multi30k-dot-feeding": [*MULTI30K, "--input-feeding"],
    "multi30k-none": [*MULTI30K, "--attention", "none"],
    "multi30k-transformer": [
        "translate_transformer.py", "{multi30k}", "--epochs", "16", "--dtype", "mixed_bfloat16",
    ],
    **{
        f"transformer-{language}": [
            "g2p.py", "--model", "transformer", "--data", "{sigmorphon}/" + f"{language}_train.tsv",
        ]
        for language in ("hun", "ice")
    },
    "shakespeare": [
        "language_model.py", "--data", "{shakespeare}", "--time-limit", "5", "--plain",
    ],
    "python-topics": ["language_model.py"],
    "listops": ["listops.py"],
    **{
        f"pronunciation-{attention}-{seed}": [
            "g2p.py", "--attention", attention, "--seed", str(seed), "--eval-words", "5000",
        ]
        for seed in SEEDS
        for attention in ("dot", "none")
    },
    **{
        f"reverse-{attention}-{seed}": [
            "reverse.py", "--attention", attention, "--train-length", "30", "--test-length", "60",
            "--seed", str(seed),
        ]
        for seed in SEEDS
        for attention in ("dot", "bahdanau", "none")
    },
}  # fmt: skip


# Which of an example's pictures are kept.
PICTURES = {
    "multi30k-transformer": [f"attention_{kind}.png" for kind in ("encoder", "decoder", "cross")],
}


def keep_picture(source, target, divisor=3):
    """Keeps a grey picture, smaller by a divisor."""
    from PIL import Image  # comes with matplotlib, which drew it

    with Image.open(source) as picture:
        picture.convert("L").reduce(divisor).save(target, optimize=True)


def arguments_of(name, places):
    """What to run for a name, with the places of its data put in; None where one is not known."""
    found = []
    for argument in RUNS[name]:
        if argument == "{multi30k}":  # the examples fetch it if need be
            found += ["--data", places["multi30k"]] if places["multi30k"] else []
            continue
        for place in ("sigmorphon", "shakespeare"):
            if f"{{{place}}}" in argument and places[place] is None:
                return None
            argument = argument.replace(f"{{{place}}}", str(places[place]))
        found.append(argument)
    return found


def run(name, arguments, folder):
    """Runs one example in a process of its own and keeps its results."""
    script, *arguments = arguments
    with tempfile.TemporaryDirectory() as output:
        command = [sys.executable, ROOT / "examples" / script, *arguments, "--output", output]
        process = subprocess.run(command, env={**os.environ, "PYTHONPATH": str(ROOT)})
        if process.returncode:
            raise SystemExit(f"{name} failed with {process.returncode}")
        results = json.loads((Path(output) / "results.json").read_text("utf-8"))
        for option in ("data", "output", "cache"):  # where they lay is no result
            results.get("options", {}).pop(option, None)
        for picture in PICTURES.get(name, ()):
            keep_picture(Path(output) / picture, folder / f"{name}-{picture}")
        partial = folder / f".{name}.json"
        partial.write_text(json.dumps(results, indent=1), encoding="utf-8")
        partial.replace(folder / f"{name}.json")


def main(arguments=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--names", nargs="+", default=list(RUNS), choices=list(RUNS), metavar="NAME",
        help=f"which runs: {', '.join(RUNS)} (default: all whose data there are)")  # fmt: skip
    add("--multi30k", type=Path, metavar="DIR", help="Multi30k's files (default: fetched)")
    add("--sigmorphon", type=Path, metavar="DIR", help="folder of ..._train.tsv files")
    add("--shakespeare", type=Path, metavar="FILE", help="the text to learn, plain or .gz")
    add("--again", action="store_true", help="make finished runs anew")
    add("--folder", type=Path, default=ROOT / "docs" / "results", help="(default: %(default)s)")
    options = parser.parse_args(arguments)
    options.folder.mkdir(parents=True, exist_ok=True)
    for name in options.names:
        if (options.folder / f"{name}.json").exists() and not options.again:
            continue
        todo = arguments_of(name, vars(options))
        if todo is None:
            print(f"== {name} is left out: it needs data, see --help")
            continue
        print(f"== {name}: {' '.join(map(str, todo))}", flush=True)
        run(name, todo, options.folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())

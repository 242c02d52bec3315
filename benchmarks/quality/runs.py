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
    "translate.py", "--epochs", "7", "--units", "320", "--vocabulary", "4000", "--dropout", "0.2",
    "--learning-rate", "0.003",
]  # fmt: skip
SEEDS = (1, 2, 3)
RUNS = {
    "cmudict-dot": ["g2p.py", "--full"],
    "multi30k-dot": MULTI30K,
    "multi30k-dot-feeding": [*MULTI30K, "--input-feeding"],
    "multi30k-none": [*MULTI30K, "--attention", "none"],
    "multi30k-transformer": [
        "translate_transformer.py", "--epochs", "11",
    ],
    **{
        f"reverse-{attention}-{seed}": [
            "reverse.py", "--attention", attention, "--train-length", "30", "--test-length", "60",
            "--seed", str(seed),
        ]
        for seed in SEEDS
        for attention in ("dot", "bahdanau", "none")
    },
}  # fmt: skip

# oneDNN forms products of float32 matrices in bfloat16, as processors with AMX do much faster.
ENVIRONMENT = {"multi30k-transformer": {"TF_SET_ONEDNN_FPMATH_MODE": "BF16"}}


def run(name, data, folder):
    """Runs one example in a process of its own and keeps its results."""
    script, *arguments = RUNS[name]
    with tempfile.TemporaryDirectory() as output:
        command = [sys.executable, ROOT / "examples" / script, *arguments, "--output", output]
        if script.startswith("translate") and data:
            command += ["--data", data]
        environment = ENVIRONMENT.get(name, {})
        process = subprocess.run(
            command, env={**os.environ, "PYTHONPATH": str(ROOT), **environment}
        )
        if process.returncode:
            raise SystemExit(f"{name} failed with {process.returncode}")
        results = json.loads((Path(output) / "results.json").read_text("utf-8"))
        for option in ("data", "output", "cache"):  # where they lay is no result
            results.get("options", {}).pop(option, None)
        results["environment"] = environment
        partial = folder / f".{name}.json"
        partial.write_text(json.dumps(results, indent=1), encoding="utf-8")
        partial.replace(folder / f"{name}.json")


def main(arguments=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--names", nargs="+", default=list(RUNS), choices=list(RUNS), metavar="NAME",
        help=f"which runs: {', '.join(RUNS)} (default: all)")  # fmt: skip
    add("--data", type=Path, help="folder of Multi30k's files (default: fetched)")
    add("--again", action="store_true", help="make finished runs anew")
    add("--folder", type=Path, default=ROOT / "docs" / "results", help="(default: %(default)s)")
    options = parser.parse_args(arguments)
    options.folder.mkdir(parents=True, exist_ok=True)
    for name in options.names:
        if options.again or not (options.folder / f"{name}.json").exists():
            print(f"== {name}: {' '.join(RUNS[name])}", flush=True)
            run(name, options.data, options.folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())

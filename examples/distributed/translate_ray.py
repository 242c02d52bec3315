"""Answers files of lines with an exported model, by Ray Data: over all cores, or many machines.

MODEL is a folder that `keras-attention export` wrote. The files may be larger than memory: they
are read in parts. OUTPUT gets a line for each line, in the order of the files, when all are done.
Killed and started again, the run goes on with the parts that are missing. A line that the model
refuses, or that is no UTF-8, is an empty line in OUTPUT and is reported in OUTPUT.errors.tsv: file,
number of the line, what is wrong.

For one file on one machine, `keras-attention run MODEL --input FILE --output FILE` does the same.
"""

import argparse
import os
import sys
import time
from pathlib import Path

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import ray  # noqa: E402
from line_parts import Part, Work, answer_part, hash_of  # noqa: E402

from keras_attention.export.servable import read_card  # noqa: E402
from keras_attention.text import DataError  # noqa: E402

EXAMPLES = """\
examples:
  translate_ray.py build/models/dates/1 part1.txt part2.txt --output answers.txt
  translate_ray.py build/models/dates/1 lines.txt --output answers.txt --workers 2
"""


class Answer:
    """A process of Ray that holds the model and answers parts."""

    def __init__(self, model, folder, batch_size, threads):
        import tensorflow as tf

        from keras_attention.export.servable import load_servable

        tf.config.threading.set_intra_op_parallelism_threads(threads)
        servable = load_servable(model)
        generates = "generated" in servable.model.signatures["serving_default"].structured_outputs
        self.ask = servable.generate if generates else servable.translate
        self.folder, self.batch_size = Path(folder), batch_size

    def __call__(self, row):
        part = Part(**{name: row[name] for name in Part._fields})
        lines, bad = answer_part(self.ask, part, self.folder, self.batch_size)
        return {"number": part.number, "lines": lines, "bad": bad}


def positive(text):
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected an integer above 0, got {text!r}")
    return int(text)


def parse_options(arguments=None):
    parser = argparse.ArgumentParser(
        prog="translate_ray.py",
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    add = parser.add_argument
    add("model", type=Path, metavar="MODEL", help="folder of the exported model")
    add("files", type=Path, nargs="+", metavar="FILE", help="text files, UTF-8, a text a line")
    add("--output", type=Path, required=True, metavar="OUTPUT", help="file of the answers")
    add("--workers", type=positive, default=os.cpu_count(), help="processes (default: all cores)")
    add("--threads", type=positive, default=1, help="of each of them (default: %(default)s)")
    add("--batch-size", type=positive, default=64, help="lines at a time (default: %(default)s)")
    add(
        "--part-lines",
        type=positive,
        default=5000,
        help="lines of a part: what is lost at most by a kill, and what a process holds in\n"
        "memory (default: %(default)s)",
    )
    options = parser.parse_args(arguments)
    for path in options.files:
        if not path.is_file():
            parser.error(f"no such file: {path}")
        if path.suffix in (".gz", ".xz"):
            parser.error(f"{path} is compressed: unpack it, parts can not be read from it")
    if not options.output.absolute().parent.is_dir():
        parser.error(f"the folder of --output does not exist: {options.output}")
    return options


def run(options):
    """Does what is not done yet; returns the number of bad lines found now."""
    card = options.model / "model_card.json"
    read_card(options.model)
    made_of = {"model": hash_of(card), "endpoint": "serving_default"}
    work = Work(options.files, options.output, options.part_lines, made_of)
    to_do, bad, started = work.to_do(), 0, time.monotonic()
    print(f"{len(work.parts)} parts, {len(work.parts) - len(to_do)} of them done.", flush=True)
    if to_do:
        start_ray(options)
        model = str(options.model.absolute())
        made = (model, str(work.folder), options.batch_size, options.threads)
        rows = [part._asdict() for part in to_do]
        answered = ray.data.from_items(rows, override_num_blocks=len(rows)).map(
            Answer,
            fn_constructor_args=made,
            compute=ray.data.ActorPoolStrategy(size=min(options.workers, len(to_do))),
            num_cpus=1,
        )
        done = lines = 0
        for row in answered.iter_rows():
            done, lines, bad = done + 1, lines + row["lines"], bad + row["bad"]
            rate = lines / (time.monotonic() - started)
            print(f"{done} of {len(to_do)} parts, {rate:.1f} lines a second", flush=True)
        ray.shutdown()
    work.join()
    print(f"Written to {options.output}; bad lines are in {options.output}.errors.tsv.")
    return bad


def start_ray(options):
    places = [str(HERE), str(HERE.parents[1]), os.environ.get("PYTHONPATH", "")]
    variables = {
        "PYTHONPATH": os.pathsep.join(filter(None, places)),
        "TF_CPP_MIN_LOG_LEVEL": "2",
    }
    ray.init(
        num_cpus=None if "RAY_ADDRESS" in os.environ else max(options.workers, os.cpu_count()),
        include_dashboard=False,
        log_to_driver=False,
        runtime_env={"env_vars": variables},
    )
    ray.data.DataContext.get_current().enable_progress_bars = False


def main(arguments=None):
    options = parse_options(arguments)
    try:
        run(options)
    except (DataError, OSError, ValueError) as error:
        print(f"translate_ray.py: error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Which score function: trains the pronunciation model of examples/g2p.py with each of them.

Runs every attention on the data of SIGMORPHON 2020, task 1 (github.com/sigmorphon/2020, task1/data,
CC BY-SA 3.0): 3,600 words a language to train on, 450 to choose the best epoch by, 450 to test
on; with each of the seeds. Finished runs are kept in a JSON file, so that the script goes on where
it was stopped. `python benchmarks/quality/report.py` makes the tables of docs/results.md of it.
"""

import argparse
import dataclasses
import json
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "examples"), str(ROOT)]
LANGUAGES = ("ice", "hun", "kor")
PLAIN = ("none", "bahdanau")  # for which input feeding is not defined
LUONG = ("dot", "general", "concat", "location", "local-m", "local-p")
VARIANTS = (*PLAIN, *LUONG, *(f"{name}+feeding" for name in LUONG))
BEAM_WIDTH = 5


def key(language, variant, seed):
    return f"{language} {variant} {seed}"


def measure(data, language, variant, seeds):
    """Trains and tests one variant with each seed; yields its results.

    The graphs are made once: a new seed gives all variables new values.
    """
    import keras
    import tensorflow as tf
    from g2p_data import Vocabulary, load_parts, training_batches
    from g2p_model import Transcriber, build_model, compile_model
    from g2p_recipe import SMALL
    from g2p_train import DevErrorRates, best_epoch, test

    attention, _, feeding = variant.partition("+")
    parts = load_parts(data / f"{language}_train.tsv")
    vocabulary = Vocabulary.of(parts.train)

    def build(seed):
        keras.utils.set_random_seed(seed)
        return build_model(vocabulary, attention, SMALL, bool(feeding))

    model, searches = build(seeds[0]), {}
    for seed in seeds:
        for variable, start in zip(model.variables, build(seed).variables, strict=True):
            variable.assign(start)
        batches = training_batches(parts.train, vocabulary, SMALL.batch_size, seed)
        if not model.compiled:
            compile_model(model, SMALL, len(batches) * SMALL.epochs)
            model.optimizer.build(model.trainable_variables)
            searches = {width: Transcriber(model, width) for width in (1, BEAM_WIDTH)}
        for variable in model.optimizer.variables:
            if variable is not model.optimizer.learning_rate:
                variable.assign(tf.zeros_like(variable))
        started = time.monotonic()
        dev = DevErrorRates(vocabulary, parts.dev, searches[1])
        history = model.fit(
            batches,
            epochs=SMALL.epochs,
            callbacks=[dev, best_epoch(SMALL.epochs)],
            shuffle=False,
            verbose=0,
        ).history
        seconds = time.monotonic() - started
        rates = {width: test(search, vocabulary, parts.test) for width, search in searches.items()}
        yield {
            "language": language,
            "variant": variant,
            "seed": seed,
            "recipe": dataclasses.asdict(SMALL),
            "dev_word_error": min(history["dev_word_error"]),
            "best_epoch": history["dev_word_error"].index(min(history["dev_word_error"])) + 1,
            "word_error": rates[1].word,
            "phoneme_error": rates[1].phoneme,
            "beam_word_error": rates[BEAM_WIDTH].word,
            "training_seconds": seconds,
            "parameters": model.count_params(),
            "versions": {"keras": keras.__version__, "tensorflow": tf.__version__},
        }


def work(options):
    """What a worker does: prints one line of JSON for each run."""
    for result in measure(options.data, options.work[0], options.work[1], options.seeds):
        print("RESULT " + json.dumps(result), flush=True)


def start(options, language, variant, seeds):
    """A worker process for one variant, with as many threads as its share of the cores."""
    threads = str(max(1, os.cpu_count() // options.jobs))
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": threads,
        "TF_NUM_INTRAOP_THREADS": threads,
        "TF_NUM_INTEROP_THREADS": "1" if options.jobs > 1 else threads,
    }
    command = [sys.executable, __file__, "--data", options.data, "--work", language, variant]
    command += ["--seeds", *map(str, seeds)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
    )


def finish_runs(options, load, save):
    """Makes the runs that are not there yet, `jobs` at a time."""
    todo = []
    for variant in options.variants:
        for language in options.languages:
            runs = load()
            seeds = [s for s in options.seeds if key(language, variant, s) not in runs]
            if seeds:
                todo.append((language, variant, seeds))
    running = []
    while todo or running:
        while todo and len(running) < options.jobs:
            running.append((todo[0], start(options, *todo.pop(0))))
        for entry in list(running):
            (language, variant, seeds), process = entry
            if process.poll() is None:
                continue
            running.remove(entry)
            lines = process.stdout.read().splitlines()
            results = [json.loads(x[7:]) for x in lines if x.startswith("RESULT ")]
            runs = load()
            for result in results:
                runs[key(language, variant, result["seed"])] = result
                print(
                    f"{key(language, variant, result['seed'])}: word error rate "
                    f"{result['word_error']:.2%}, beam {result['beam_word_error']:.2%}, "
                    f"{result['training_seconds']:.0f} s",
                    flush=True,
                )
            save(runs)
            if len(results) < len(seeds):
                raise SystemExit(f"{language} {variant} failed with {process.returncode}")
        time.sleep(0.5)


def main(arguments=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--data", type=Path, required=True, help="folder of ..._train.tsv files")
    add("--languages", nargs="+", default=LANGUAGES, choices=LANGUAGES)
    add("--variants", nargs="+", default=VARIANTS, choices=VARIANTS, metavar="VARIANT")
    add("--seeds", type=int, nargs="+", default=[1, 2, 3], help="(default: 1 2 3)")
    add("--jobs", type=int, default=1, help="processes at a time (default: %(default)s)")
    add("--runs", type=Path, default=ROOT / "docs" / "results" / "score_functions.json")
    add("--work", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.work:
        return work(options)
    from keras_attention.whole import whole

    def load():
        return json.loads(options.runs.read_text("utf-8")) if options.runs.exists() else {}

    def save(runs):
        with whole(options.runs) as path:
            path.write_text(json.dumps(runs, indent=1, sort_keys=True), encoding="utf-8")

    options.runs.parent.mkdir(parents=True, exist_ok=True)
    finish_runs(options, load, save)
    return 0


if __name__ == "__main__":
    sys.exit(main())

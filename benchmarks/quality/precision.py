"""What a translation model loses and gains in bfloat16 and in 8 bits: size, speed, BLEU.

    python benchmarks/quality/precision.py build/translate_transformer/model.keras --data DIR

The model, as translate.py or translate_transformer.py saved it, is exported in each precision, and
translates the test sentences of Multi30k by greedy search. `python benchmarks/quality/report.py`
makes the table of docs/results.md of it.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "examples"), str(ROOT)]

from translate_data import read_folder
from translate_score import bleu

from keras_attention import export_litert, export_servable, load_servable
from keras_attention.text import PAD

PRECISIONS = ("float32", "bfloat16", "int8")
LENGTH = 60


def in_precision(model, precision):
    """The model with the same weights, computing in another precision."""
    keras.config.set_dtype_policy("bfloat16" if precision == "bfloat16" else "float32")
    try:
        other = type(model).from_config(model.get_config())
    finally:
        keras.config.set_dtype_policy("float32")
    other.set_weights([np.asarray(w, "float32") for w in model.get_weights()])
    if precision == "int8":
        other.quantize("int8")
    return other


def megabytes(path):
    files = [path] if path.is_file() else path.rglob("*")
    return sum(x.stat().st_size for x in files if x.is_file()) / 1e6


def measure(translate, sources, targets, rounds):
    """BLEU, and the median of the seconds that all sentences take."""
    seconds = []
    translate(sources)  # the first call makes the graphs
    for _ in range(rounds):
        started = time.perf_counter()
        outputs = translate(sources)
        seconds.append(time.perf_counter() - started)
    score = bleu(outputs, targets)
    return {
        "seconds": round(statistics.median(seconds), 2),
        "sentences_per_second": round(len(sources) / statistics.median(seconds), 1),
        "bleu": score.bleu,
        "signature": score.signature,
    }


def by_litert(path, model):
    """A function that translates texts one by one with a LiteRT file."""
    from ai_edge_litert.interpreter import Interpreter

    runner = Interpreter(str(path)).get_signature_runner()
    source, target = model.inference.source, model.inference.target

    def translate(texts):
        rows = []
        for text in texts:
            ids = source.encode(text, add_end=True).numpy()
            (tokens,) = runner(source=ids)["tokens"]
            rows.append(np.pad(tokens, (0, LENGTH - len(tokens)), constant_values=PAD))
        return [x.decode("utf-8") for x in target.decode(np.stack(rows)).numpy()]

    return translate


def run(model, sources, targets, rounds):
    """A result for each precision, of TensorFlow and of LiteRT."""
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        for precision in PRECISIONS:
            other = in_precision(model, precision)
            path = Path(folder) / precision
            export_servable(other, path, max_length=LENGTH, examples=sources[:3])
            found = measure(load_servable(path).translate, sources, targets, rounds)
            name = f"SavedModel, {precision}"
            results[name] = {"megabytes": round(megabytes(path / "variables"), 1), **found}
            print(name, results[name], flush=True)
        exact = in_precision(model, "float32")
        for precision in ("float32", "int8"):
            path = Path(folder) / f"{precision}.tflite"
            export_litert(exact, path, max_length=LENGTH, int8=precision == "int8")
            name = f"LiteRT, {precision}"
            found = measure(by_litert(path, exact), sources, targets, 1)
            results[name] = {"megabytes": round(megabytes(path), 1), **found}
            print(name, results[name], flush=True)
    return results


def main(arguments=None):
    from keras_attention.whole import whole

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("model", type=Path, metavar="MODEL.keras")
    add("--data", type=Path, required=True, help="folder of Multi30k")
    add("--sentences", type=int, help="only so many")
    add("--rounds", type=int, default=3, help="(default: %(default)s)")
    add("--output", type=Path, default=ROOT / "docs" / "results" / "precision.json")
    options = parser.parse_args(arguments)
    test = read_folder(options.data).test
    sources, targets = (
        [text.lower() for text in side[: options.sentences]]
        for side in (test.sources, test.targets)
    )
    model = keras.saving.load_model(options.model, compile=False)
    results = {
        "model": type(model).__name__,
        "parameters": model.count_params(),
        "sentences": len(sources),
        "cores": os.cpu_count(),
        "versions": {"keras": keras.__version__, "tensorflow": tf.__version__},
        "precisions": run(model, sources, targets, options.rounds),
    }
    with whole(options.output) as path:
        path.write_text(json.dumps(results, indent=1), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Makes a folder of files that any web server can serve: type a text, see the output and what
each of its tokens looked at.

    python build.py ../../../build/dates/model.keras --output build/page
    python build.py --service http://127.0.0.1:8501 --name translate --output build/page
    python -m http.server --directory build/page 8000

With a model, it runs in the reader's browser, by onnxruntime-web, and nothing is sent anywhere. It
must translate (`Seq2Seq`, `Transformer`) with tokenizers of characters, words or bytes. With
`--service`, the page asks a server (see ../README.md), which may have any tokenizer.

Needs `pip install 'keras-attention-layers[export]'`, and npm for onnxruntime-web.
"""

import argparse
import json
import shutil
import subprocess
import sys
from importlib import resources
from pathlib import Path

HERE = Path(__file__).resolve().parent
PAGE = ("index.html", "page.js", "page.css", "served_model.js", "browser_model.js", "tokens.js")
VIEW = ("attention_view.js", "attention_view.css")
RUNTIME = ("ort.wasm.min.mjs", "ort-wasm-simd-threaded.mjs", "ort-wasm-simd-threaded.wasm")
TOKENIZERS = ("CharacterTokenizer", "WordTokenizer", "ByteTokenizer")


class BuildError(Exception):
    """What the user can put right."""


def read_arguments(arguments=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("model", nargs="?", type=Path, metavar="MODEL.keras", help="the model, for the browser")
    add("--service", metavar="URL", help="a server instead, e.g. http://127.0.0.1:8501")
    add("--name", default="model", help="the model's name there (default: %(default)s)")
    add("--output", type=Path, required=True, help="the folder to make")
    add("--max-length", type=int, help="most tokens of an output (default: 128, if possible)")
    add("--title", help="what stands above")
    add("--example", nargs="+", default=[], metavar="TEXT", help="texts to click at")
    options = parser.parse_args(arguments)
    if (options.model is None) == (options.service is None):
        parser.error("expected a model or --service, one of them")
    if options.max_length is not None and options.max_length < 1:
        parser.error(f"--max-length must be above 0, got {options.max_length}")
    return options


def build(options):
    """Makes the folder, whole or not at all."""
    from keras_attention.whole import whole

    output = options.output
    if output.exists() and not (output / "page.json").is_file():
        raise BuildError(f"{output} exists and holds no page: it is not overwritten")
    output.absolute().parent.mkdir(parents=True, exist_ok=True)
    with whole(output) as new:
        new.mkdir()
        for name in PAGE:
            shutil.copy(HERE / name, new)
        for name in VIEW:
            text = resources.files("keras_attention.visualize").joinpath(name).read_text("utf-8")
            (new / name).write_text(text, "utf-8")
        settings = {"title": options.title, "examples": options.example}
        if options.service:
            settings["service"] = {"url": options.service, "name": options.name}
        else:
            settings["model"] = add_model(options.model, options.max_length, new)
        (new / "page.json").write_text(json.dumps(settings, ensure_ascii=False), "utf-8")


def add_model(path, max_length, folder):
    """Writes the model's files into the folder; returns what the page has to know of them."""
    import keras

    from keras_attention import Seq2Seq, Transformer, export_onnx

    if not path.is_file():
        raise BuildError(f"no such file: {path}")
    model = keras.saving.load_model(path, compile=False)
    if not isinstance(model, (Seq2Seq, Transformer)):
        raise BuildError(f"{path} holds a {type(model).__name__}, which does not translate")
    told = {name: describe(name, getattr(model.inference, name)) for name in ("source", "target")}
    runtime = HERE / "node_modules" / "onnxruntime-web" / "dist"
    if not runtime.is_dir():
        install_runtime()
    for endpoint in ("encode", "step"):
        export_onnx(model, folder / f"{endpoint}.onnx", endpoint, max_length)
        told[endpoint] = f"{endpoint}.onnx"
    (folder / "ort").mkdir()
    for name in RUNTIME:
        shutil.copy(runtime / name, folder / "ort")
    positions = model.inference.max_positions
    return {
        **told,
        "max_length": max_length or min(128, positions or 128),
        "max_input_length": positions,
    }


def describe(side, tokenizer):
    kind = type(tokenizer).__name__
    if kind not in TOKENIZERS:
        raise BuildError(
            f"the {side} side has {kind if tokenizer else 'no tokenizer'}; a page that runs in the "
            f"browser takes {', '.join(TOKENIZERS)}. Others work with --service"
        )
    config = tokenizer.get_config()
    return {
        "kind": kind,
        "tokens": tokenizer.tokens,
        "lowercase": config["lowercase"],
        "normalization": config["normalization"],
    }


def install_runtime():
    npm = shutil.which("npm")
    if npm is None:
        raise BuildError("npm is needed once, to get onnxruntime-web (https://nodejs.org)")
    print("npm ci (once)", flush=True)
    done = subprocess.run([npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"], cwd=HERE)
    if done.returncode:
        raise BuildError("npm could not get onnxruntime-web")


def main():
    options = read_arguments()
    try:
        build(options)
    except (BuildError, OSError, ValueError, ImportError, RuntimeError) as error:
        sys.exit(f"build.py: error: {error}")
    print(f"{options.output}: serve it, e.g. python -m http.server --directory {options.output}")


if __name__ == "__main__":
    main()

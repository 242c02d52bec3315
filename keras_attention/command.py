"""The command `keras-attention`: exports models; asks, describes and draws what was exported."""

import argparse
import contextlib
import json
import sys
from pathlib import Path

FORMATS = ("savedmodel", "onnx", "litert")
# Of options of `export` that do not go with all of them.
FORMATS_OF = {
    "endpoint": ("onnx", "litert"),
    "int8": ("litert",),
    "beam_width": ("savedmodel",),
    "max_input_length": ("savedmodel",),
    "beam_option": ("savedmodel",),
    "metrics": ("savedmodel",),
}


class OneLineErrors(argparse.ArgumentParser):
    """A parser whose errors are one line; --help has the usage."""

    def error(self, message):
        self.exit(2, f"{self.prog}: error: {in_one_line(message)}\n")


def positive(text):
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected an integer above 0, got {text!r}")
    return int(text)


def option(text):
    """NAME=VALUE as a pair; the value as JSON, or a text."""
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise argparse.ArgumentTypeError(f"expected NAME=VALUE, got {text!r}")
    try:
        return name, json.loads(value)
    except (ValueError, RecursionError):
        return name, value


def in_one_line(message):
    """A message without line ends, and with half letters as their numbers."""
    return " ".join(str(message).encode("utf-8", "backslashreplace").decode("utf-8").split())


def shown(path):
    """A path as text that can be printed: names of files may be any bytes."""
    return str(path).encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def make_parser():
    parser = OneLineErrors(
        prog="keras-attention",
        description="Exports models of keras_attention, and uses what was exported.",
        epilog="Exit status: 0, or 1 after an error, or 2 for arguments that are wrong. "
        "TensorFlow's notes on standard error become fewer with TF_CPP_MIN_LOG_LEVEL=3.",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name, function, text):
        sub = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
        sub.set_defaults(function=function)
        return sub.add_argument

    add = command("export", export, "write a .keras model as a SavedModel, text in and text out")
    add("model", type=Path, metavar="MODEL.keras")
    add("path", type=Path, metavar="OUT", help="the folder, or file, to write")
    add("--format", choices=FORMATS, default="savedmodel",
        help="onnx, litert: one endpoint as a file, for ids (default: savedmodel)")  # fmt: skip
    add("--endpoint", help="of onnx and litert (default: serve_tokens)")
    add("--int8", action="store_true", help="of litert: matrices in 8 bits")
    add("--beam-width", type=positive, help="of the endpoint beam (default: 4)")
    add("--max-length", type=positive, help="most tokens of an output (default: 128, if possible)")
    add("--max-input-length", type=positive, help="most tokens of an input (default: any number)")
    add("--option", type=option, action="append", metavar="NAME=VALUE", default=[],
        help="of the search, e.g. temperature=0.8")  # fmt: skip
    add("--beam-option", type=option, action="append", metavar="NAME=VALUE", default=[],
        help="of the endpoint beam, e.g. length_penalty=0.6")  # fmt: skip
    add("--metrics", type=Path, metavar="FILE.json", help="what was measured, for the model card")
    add("--overwrite", action="store_true", help="replace what is at OUT")

    add = command("run", run, "ask an exported model; without --text the lines of standard input")
    add("path", type=Path, metavar="OUT", help="the exported folder")
    add("--text", nargs="+", help="texts to ask")
    add("--input", type=Path, metavar="FILE", help="file of lines to ask")
    add("--output", type=Path, metavar="FILE", help="file for the answers to --input, line by "
        "line; started again after an interruption, it goes on where it was")  # fmt: skip
    add("--beam", action="store_true",
        help="all results of beam search, as one JSON list a line")  # fmt: skip
    add("--batch-size", type=positive, default=64, help="texts at a time (default: 64)")

    add = command("inspect", inspect, "show the endpoints, shapes and sizes of an exported model")
    add("path", type=Path, metavar="OUT")
    add("--json", action="store_true", help="the model card")

    add = command("plot", plot, "draw the alignment of an exported model's answer to a text")
    add("path", type=Path, metavar="OUT")
    add("--text", required=True)
    add("-o", "--output", type=Path, required=True, metavar="PICTURE",
        help="file to write; its suffix says the format: .png, .svg, .pdf, or .html for a page to "
        "point at")  # fmt: skip
    return parser


def wrong_together(options):
    """What is wrong with options that are right by themselves, or None."""
    if options.command == "export":
        for name, formats in FORMATS_OF.items():
            if getattr(options, name) not in (None, False, []) and options.format not in formats:
                return f"--{name.replace('_', '-')} goes with --format {' or '.join(formats)}"
    if options.command == "run":
        if options.output and not options.input:
            return "--output goes with --input, the file of lines to ask"
        if options.text and options.input:
            return "--text and --input exclude each other"
    return None


def export(options):
    import keras

    if not options.model.is_file():
        raise FileNotFoundError(f"no such file: {options.model}")
    try:
        metrics = json.loads(options.metrics.read_text("utf-8")) if options.metrics else None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{options.metrics}: {error}") from None
    try:
        model = keras.saving.load_model(options.model, compile=False)
    except Exception as error:  # (of many classes)
        first = str(error).partition("\n")[0][:300]
        raise ValueError(f"{options.model} can not be loaded as a Keras model: {first}") from None
    options.path.absolute().parent.mkdir(parents=True, exist_ok=True)
    write = {"savedmodel": export_folder, "onnx": export_file, "litert": export_file}
    write[options.format](model, options, metrics)


def export_file(model, options, _):
    from keras_attention.export.litert_file import export_litert
    from keras_attention.export.onnx_file import export_onnx

    common = {
        "endpoint": "serve_tokens" if options.endpoint is None else options.endpoint,
        "max_length": options.max_length,
        "search_options": dict(options.option),
        "overwrite": options.overwrite,
    }
    if options.format == "onnx":
        told = export_onnx(model, options.path, **common)
    else:
        told = export_litert(model, options.path, int8=options.int8, **common)
    names = f"{', '.join(told['inputs'])} -> {', '.join(told['outputs'])}"
    gap = f"largest difference from the model {told['largest_difference']:.0e}"
    print(f"{options.path}: {names}; {told['bytes'] / 1e6:.1f} MB; {gap}")


def export_folder(model, options, metrics):
    from keras_attention.export.saved_model import export_servable

    card = export_servable(
        model,
        options.path,
        4 if options.beam_width is None else options.beam_width,
        options.max_length,
        options.max_input_length,
        dict(options.option),
        dict(options.beam_option),
        overwrite=options.overwrite,
        metrics=metrics,
    )
    tried = len(card["compared_with_model"]["texts"])
    print(f"{options.path}: {', '.join(card['endpoints'])}; equal to the model for {tried} texts")


def run(options):
    from keras_attention.export.bulk import answer_file, answer_lines

    ask = _asking(_load(options.path), options.beam)
    if options.output:
        bar = _progress_bar()
        done = answer_file(
            ask, options.path, options.input, options.output, options.batch_size, bar
        )
        before = f", {done} lines were there before" if done else ""
        print(f"{shown(options.output)}: written{before}")
        return
    if options.text:
        lines, name = options.text, "text"
    else:
        from keras_attention.text.files import read_lines, split_lines

        name = options.input or "standard input"
        read = read_lines(name) if options.input else split_lines(sys.stdin.buffer.read(), name)
        lines, name = read, f"{name}, line"
    for answer in answer_lines(ask, lines, options.batch_size, lambda n: f"{name} {n + 1}"):
        print(answer)


def _load(path):
    from keras_attention.export.servable import load_servable

    return load_servable(path)


def _asking(servable, beam):
    """The function that answers: of one line for each text, also where there are several."""
    continues = "generated" in servable.model.signatures["serving_default"].structured_outputs
    if not beam:
        return servable.generate if continues else servable.translate

    def beam_as_json(texts, batch_size):
        ask = servable.generate_beam if continues else servable.translate_beam
        return [
            json.dumps([{"text": x, "score": score} for x, score in found], ensure_ascii=False)
            for found in ask(texts, batch_size=batch_size)
        ]

    return beam_as_json


def _progress_bar():
    import keras

    bar = None

    def show(done, total):
        nonlocal bar
        bar = bar or keras.utils.Progbar(total, unit_name="line")
        bar.update(done)

    return show


def inspect(options):
    from keras_attention.export.servable import CARD, read_card

    card = read_card(options.path)
    if options.json:
        print((options.path / CARD).read_text("utf-8"))
        return
    size = sum(x.stat().st_size for x in options.path.rglob("*") if x.is_file())
    versions = ", ".join(f"{name} {version}" for name, version in card["versions"].items())
    print(f"{card['model']}, {card['parameters']:,} parameters, {card['dtype']}")
    print(f"{size / 1e6:.1f} MB, written {card['written']} with {versions}")
    print(f"needs {', '.join(card['requires'])}")
    for name, tokenizer in card["tokenizers"].items():
        print(f"{name}: {tokenizer['class']}, {tokenizer['size']} ids")
    for name, endpoint in card["endpoints"].items():
        print(f"\n{name}")
        for side in ("inputs", "outputs"):
            for tensor, spec in endpoint[side].items():
                shape = ", ".join("?" if n is None else str(n) for n in spec["shape"])
                print(f"  {side[:-1]:7} {tensor}: {spec['dtype']} [{shape}]")


def plot(options):
    from keras_attention.visualize import attention_page, check_format, plot_alignment

    as_page = options.output.suffix.lower() in (".html", ".htm")
    if not as_page:
        try:
            check_format("--output", options.output.suffix)
        except ValueError as error:
            raise ValueError(f"{error} (A page to point at ends in .html.)") from None
    found = _load(options.path).alignments(options.text)
    if found.attention_scores is None:
        raise ValueError(f"{options.path} is of a model without attention")
    if not found.target_tokens:
        raise ValueError(f"the answer to {options.text!r} is empty: nothing to draw")
    draw = attention_page if as_page else plot_alignment
    draw(
        found.attention_scores,
        found.source_tokens,
        found.target_tokens,
        title=found.text,
        path=options.output,
    )
    print(f"{shown(options.output)}: {options.text} -> {found.text}")


def main(arguments=None):
    """Runs the command.

    Args:
        arguments: list of str; by default those of the process. (Texts among them become a tensor
            `[B]`.)

    Returns:
        The exit status: 0, or 1 after an error that was printed to standard error.

    Raises:
        SystemExit: of status 2, for arguments that can not be read or do not go together.

    Example: `main(["inspect", "build/model"])`
    """
    parser = make_parser()
    options = parser.parse_args(arguments)
    if wrong := wrong_together(options):
        parser.exit(2, f"{parser.prog} {options.command}: error: {wrong}\n")
    try:
        options.function(options)
        sys.stdout.flush()  # a full disk is an error here, and no note of the interpreter's end
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # e.g. `| head`
        _drop_output()
        return 1
    except Exception as error:  # (TensorFlow's are of many classes)
        _drop_output()
        print(f"{parser.prog} {options.command}: error: {_told(error)}", file=sys.stderr)
        return 1
    return 0


def _told(error):
    """What an error says; the class where that alone would not tell what is wrong."""
    text = in_one_line(getattr(error, "message", error))
    if isinstance(error, UnicodeEncodeError):
        return f"the output can not be written as {error.encoding}: {text}"
    told = (OSError, ValueError, RuntimeError, ImportError, TypeError, OverflowError)
    return text if text and isinstance(error, told) else f"{type(error).__name__}: {text}"


def _drop_output():
    """Forgets what standard output could not take, so that the end of the process does not try."""
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        return
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.close()


if __name__ == "__main__":
    sys.exit(main())

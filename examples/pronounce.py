"""Pronounces words with a model that g2p.py exported. Needs TensorFlow, not Keras.

python examples/pronounce.py --model build/g2p/saved_model attention tensorflow
"""

import argparse
import json
import sys
import unicodedata
from pathlib import Path

OUTPUTS = {"pronunciation", "score", "letters"}
PLOTTED_LETTERS = 100


class UsageError(ValueError):
    """Something the user can put right."""


def load(folder):
    """Returns the function text `[B]` -> dict of tensors of an exported model."""
    if not (Path(folder) / "saved_model.pb").is_file():
        raise UsageError(f"--model {folder}: expected the folder of a SavedModel, found none")
    import tensorflow as tf

    try:
        module = tf.saved_model.load(str(folder))
        signature = module.signatures["serving_default"]
    except (OSError, KeyError, ValueError, tf.errors.OpError) as error:
        reason = str(error).splitlines()[0]
        raise UsageError(f"--model {folder}: not a readable model of g2p.py: {reason}") from None
    inputs, outputs = signature.structured_input_signature[1], signature.structured_outputs
    if set(inputs) != {"text"} or not OUTPUTS <= set(outputs):
        raise UsageError(f"--model {folder}: expected a model of g2p.py, with text in and out")
    # The loaded object owns the variables: it must live as long as the function.
    return lambda words, _owner=module: signature(text=tf.constant(words))


def pronounce(model, words):
    """Returns a dict a word: word, pronunciation, score, letters, attention (or None)."""
    outputs = {name: tensor.numpy() for name, tensor in model(words).items()}
    results = []
    for row, word in enumerate(words):
        pronunciation = outputs["pronunciation"][row].decode("utf-8")
        letters = [letter.decode("utf-8") for letter in outputs["letters"][row] if letter]
        attention = None
        if "attention" in outputs:
            steps = len(pronunciation.split()) + 1  # the last one ends the word
            attention = outputs["attention"][row, :steps, : len(letters)].tolist()
        results.append(
            {
                "word": word,
                "pronunciation": pronunciation,
                "score": float(outputs["score"][row]),
                "letters": letters,
                "attention": attention,
            }
        )
    return results


def letter_labels(letters):
    """Labels that the font of the picture has: for jamo and the like the end of their names."""
    from matplotlib import font_manager, ft2font

    drawable = ft2font.FT2Font(font_manager.findfont("DejaVu Sans")).get_charmap()
    return [
        letter
        if ord(letter) in drawable
        else unicodedata.name(letter, "unknown").split()[-1].lower()
        for letter in letters
    ]


def plot_alignment(result, path):
    """Writes a picture of the attention weights: letters from left to right, phones downwards."""
    from matplotlib.figure import Figure

    labels = letter_labels(result["letters"])
    named = labels != result["letters"]
    phones = [*result["pronunciation"].split(), "end"]
    figure = Figure(figsize=(2 + 0.4 * len(labels), 1.5 + 0.4 * len(phones)), layout="constrained")
    axes = figure.add_subplot()
    image = axes.imshow(result["attention"], vmin=0, vmax=1, cmap="Blues", aspect="auto")
    axes.set_xticks(range(len(labels)), labels, rotation=90 if named else 0)
    axes.set_yticks(range(len(phones)), phones)
    axes.set(xlabel="letters", ylabel="phones")
    axes.set_title("attention weights" if named else f"{result['word']}: attention weights")
    figure.colorbar(image, ax=axes)
    unfinished = path.with_name(f".unfinished-{path.name}")
    try:
        figure.savefig(unfinished, format="png", dpi=150)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def parse(arguments):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("words", nargs="+", metavar="word", help="words to pronounce")
    parser.add_argument(
        "--model",
        type=Path,
        default=Path("build/g2p/saved_model"),
        help="folder of the exported model (default: %(default)s)",
    )
    parser.add_argument("--plot", type=Path, help="PNG file for the alignment of the first word")
    parser.add_argument("--json", action="store_true", help="print JSON, attention weights too")
    return parser.parse_args(arguments)


def run(options):
    for place, word in enumerate(options.words, start=1):
        if not word.strip():
            raise UsageError(f"word {place}: expected letters, got {word!r}")
        if any("\ud800" <= letter <= "\udfff" for letter in word):  # bytes that are no text
            raise UsageError(f"word {place}: expected UTF-8 text, got {word!r}")
    results = pronounce(load(options.model), options.words)
    if options.plot:
        if results[0]["attention"] is None:
            raise UsageError("--plot: the model has no attention, there is no alignment to draw")
        if len(results[0]["letters"]) > PLOTTED_LETTERS:
            raise UsageError(f"--plot: expected a word of at most {PLOTTED_LETTERS} letters")
        try:
            plot_alignment(results[0], options.plot)
        except (OSError, ImportError) as error:
            raise UsageError(f"--plot {options.plot}: can not be written: {error}") from None
    if options.json:
        print(json.dumps(results))
    else:
        for result in results:
            print(f"{result['word']}\t{result['pronunciation']}\t{result['score']:.3f}")


def main(arguments=None):
    try:
        run(parse(arguments))
    except UsageError as error:
        print(f"pronounce.py: error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())

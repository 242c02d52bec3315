"""Files of lines through a servable: resumable, in order, written whole or not at all."""

import hashlib
import json
import os
import re
from pathlib import Path

from keras_attention.text.files import DataError, read_lines

CHUNKS = 8  # batches between two writes


def answer_lines(ask, lines, batch_size, place=""):
    """The answers to lines, each of one line; what can not be asked is named.

    Args:
        ask: function from a list of str, and `batch_size`, to a list of str. (In the model they
            are a tensor `[B]`.)
        lines: list of str.
        batch_size: how many go through the model at a time.
        place: what error messages call the source of the lines, with "{}" for the number.

    Returns:
        A list of str without line ends; a line end in an answer becomes a space.

    Raises:
        DataError: if the model raises an error for a line.
    """
    import tensorflow as tf

    try:
        answers = ask(lines, batch_size=batch_size)
    except tf.errors.InvalidArgumentError as error:
        for number, line in enumerate(lines):
            try:
                ask([line], batch_size=1)
            except tf.errors.InvalidArgumentError as own:
                raise DataError(f"{place.format(number)}{first_line(own)}") from None
        raise DataError(first_line(error)) from None
    return [" ".join(answer.splitlines()) for answer in answers]


def first_line(error):
    """What a TensorFlow error says, without the graph's account of where."""
    lines = [x for x in str(error.message).splitlines() if x and x != "Graph execution error:"]
    found = re.search(r"assertion failed: \[(.*?)\]", str(error.message))
    return found.group(1) if found else lines[0]


def answer_file(ask, model_path, source, target, batch_size=64, progress=None):
    """Answers each line of a file in a line of another.

    What is done so far lies in `target` + ".part": killed and started again, it goes on from there.
    `target` appears when all lines are in it.

    Args:
        ask: as of `answer_lines`.
        model_path: folder of the servable, by which a changed model is noticed.
        source, target: the files; the source is one that `read_lines` takes.
        batch_size: how many lines go through the model at a time, a tensor `[B]`.
        progress: function of the numbers of lines done and of all, called after each write.

    Returns:
        The number of lines that were there already.

    Raises:
        FileExistsError: if `target` exists.
        DataError: if the source can not be read, a line can not be asked, or what is done so far
            is of another source, model or kind of output.
    """
    target = Path(target)
    if target.exists():
        raise FileExistsError(f"{target} exists already.")
    lines = read_lines(source)
    part, made_of = (target.with_name(target.name + end) for end in (".part", ".part.json"))
    fingerprint = {
        "source": _hash(*lines),
        "model": _hash((Path(model_path) / "model_card.json").read_text("utf-8")),
        "output": getattr(ask, "__name__", ""),
    }
    done = _resume(part, made_of, fingerprint)
    with open(part, "ab") as file:
        for first in range(done, len(lines), CHUNKS * batch_size):
            some = lines[first : first + CHUNKS * batch_size]
            answers = answer_lines(ask, some, batch_size, _Place(source, first))
            file.write("".join(answer + "\n" for answer in answers).encode("utf-8"))
            file.flush()
            os.fsync(file.fileno())
            if progress:
                progress(first + len(some), len(lines))
    os.replace(part, target)
    made_of.unlink()
    return done


class _Place:
    """What an error calls line n of the lines from `first` on."""

    def __init__(self, path, first):
        self.path, self.first = path, first

    def format(self, number):
        return f"{self.path}, line {self.first + number + 1}: "


def _hash(*texts):
    digest = hashlib.sha256()
    for text in texts:
        digest.update(text.encode("utf-8") + b"\n")
    return digest.hexdigest()


def _resume(part, made_of, fingerprint):
    """The number of whole lines in `part`, which is cut behind them, or begun."""
    if part.exists():
        before = json.loads(made_of.read_text("utf-8")) if made_of.exists() else {}
        for name, value in fingerprint.items():
            if before.get(name) != value:
                raise DataError(
                    f"{part} holds lines made with another {name}. Delete it to begin anew."
                )
        content = part.read_bytes()
        whole = content.rfind(b"\n") + 1
        os.truncate(part, whole)
        return content[:whole].count(b"\n")
    made_of.write_text(json.dumps(fingerprint), "utf-8")
    return 0

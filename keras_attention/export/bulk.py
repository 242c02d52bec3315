"""Files of lines through a servable: resumable, in order, written whole or not at all."""

import contextlib
import hashlib
import json
import os
from pathlib import Path

from keras_attention.text.files import DataError, read_lines
from keras_attention.whole import whole

try:
    import fcntl
except ImportError:  # e.g. on Windows
    fcntl = None

CHUNKS = 8  # batches between two writes


def answer_lines(ask, lines, batch_size, where):
    """The answers to lines, each of one line; what can not be asked is named.

    Args:
        ask: function from a list of str, and `batch_size`, to a list of str. (In the model they
            are a tensor `[B]`.)
        lines: list of str.
        batch_size: how many go through the model at a time.
        where: function from the place of a line, from 0, to what error messages call it.

    Returns:
        A list of str without line ends; a line end in an answer becomes a space.

    Raises:
        DataError: if the model raises an error for a line. Its `answers` are those to the lines
            before it.
    """
    try:
        answers = ask(lines, batch_size=batch_size)
    except ValueError as error:
        answers = []
        for place, line in enumerate(lines):
            try:
                answers += ask([line], batch_size=1)
            except ValueError as own:
                found = DataError(f"{where(place)}: {own}")
                found.answers = _in_lines(answers)
                raise found from None
        raise error
    return _in_lines(answers)


def _in_lines(answers):
    return [" ".join(answer.splitlines()) for answer in answers]


def answer_file(ask, model_path, source, target, batch_size=64, progress=None):
    """Answers each line of a file in a line of another.

    What is done so far lies in `target` + ".part": stopped and started again, it goes on from
    there, also if lines that were not reached yet have changed. `target` appears when all lines are
    in it.

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
        BlockingIOError: if another process is writing it.
        FileNotFoundError: if the source, or the folder of the target, does not exist.
        DataError: if the source can not be read, a line can not be asked, or what is done so far
            is of another source, model or kind of output. Lines before it stay done.
    """
    target = Path(target)
    if target.exists():
        raise FileExistsError(f"{target} exists already. Give another --output, or remove it.")
    if not target.absolute().parent.is_dir():
        raise FileNotFoundError(f"The folder {target.absolute().parent} does not exist.")
    lines = read_lines(source)
    work = _Work(target, lines, (Path(model_path) / "model_card.json").read_text("utf-8"), ask)
    with work.alone():
        already = done = work.resume()
        while done < len(lines):
            some = lines[done : done + CHUNKS * batch_size]
            try:
                answers = answer_lines(
                    ask, some, batch_size, lambda n, first=done: f"{source}, line {first + n + 1}"
                )
            except DataError as error:
                work.write(error.answers, done + len(error.answers))
                raise
            done += len(some)
            work.write(answers, done)
            if progress:
                progress(done, len(lines))
        work.finish()
    return already


class _Work:
    """What is done so far: answers in one file, and in another what they are answers to."""

    def __init__(self, target, lines, card, ask):
        self.target, self.lines = target, lines
        self.part, self.notes = (target.with_name(target.name + x) for x in (".part", ".part.json"))
        self.made_of = {"model": _hash([card]), "output": getattr(ask, "__name__", "")}

    @contextlib.contextmanager
    def alone(self):
        """No other process writes meanwhile, where the system can tell."""
        with open(self.part, "ab") as file:
            try:
                if fcntl is not None:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise BlockingIOError(f"{self.part} is being written by another process.") from None
            if self.target.exists():  # since then
                raise FileExistsError(f"{self.target} has just been written by another process.")
            yield

    def resume(self):
        """The number of lines done; the part is cut behind them, or begun."""
        content = self.part.read_bytes()
        if not content and not self.notes.exists():
            self.write([], 0)
            return 0
        try:
            before = dict(json.loads(self.notes.read_text("utf-8")))
            done, end = int(before["lines"]), 0
            for _ in range(done):
                end = content.index(b"\n", end) + 1
        except (OSError, ValueError, TypeError, KeyError, RecursionError, OverflowError):
            raise DataError(
                f"{self.part} can not be gone on with: it or {self.notes} is missing or damaged. "
                "Delete both to begin anew."
            ) from None
        for name, value in {**self.made_of, "source": _hash(self.lines[:done])}.items():
            if before.get(name) != value:
                raise DataError(
                    f"{self.part} holds lines made with another {name}. Delete it to begin anew."
                )
        os.truncate(self.part, end)
        return done

    def write(self, answers, done):
        """Puts answers behind those there, and notes how many lines are done."""
        notes = {**self.made_of, "lines": done, "source": _hash(self.lines[:done])}
        try:
            with open(self.part, "ab") as file:
                file.write("".join(answer + "\n" for answer in answers).encode("utf-8"))
                file.flush()
                os.fsync(file.fileno())
            with whole(self.notes) as new:
                new.write_text(json.dumps(notes), "utf-8")
        except OSError as error:  # Python's own does not say which file could not be written to
            raise OSError(error.errno, error.strerror, str(self.part)) from error

    def finish(self):
        os.replace(self.part, self.target)
        self.notes.unlink()


def _hash(texts):
    digest = hashlib.sha256()
    for text in texts:
        digest.update(text.encode("utf-8") + b"\n")
    return digest.hexdigest()

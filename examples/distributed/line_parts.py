"""Files of lines in parts: found without reading a file into memory, done one by one, joined.

Beside OUTPUT lies the folder OUTPUT.parts with two files for each part that is done, answers and
bad lines, written whole or not at all: what is there when a run is killed is not done again.
"""

import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import NamedTuple

from keras_attention.export.bulk import answer_lines
from keras_attention.text import DataError
from keras_attention.whole import whole

PLAN, ERRORS = "plan.json", ".errors.tsv"


class Part(NamedTuple):
    """Some lines of a file: `size` bytes from `start` on, the first of them line `line`, from 1."""

    number: int
    path: str
    start: int
    size: int
    line: int


def find_parts(paths, lines):
    """The parts of files, each of at most so many lines; one line is in memory at a time."""
    parts = []
    for path in map(str, paths):
        place = start = 0
        first = number = 1
        with open(path, "rb") as file:
            for number, line in enumerate(file, 1):
                place += len(line)
                if number % lines == 0:
                    parts.append(Part(len(parts), path, start, place - start, first))
                    start, first = place, number + 1
        if place > start:
            parts.append(Part(len(parts), path, start, place - start, first))
    return parts


def answer_part(ask, part, folder, batch_size):
    """Writes the answers to the lines of a part, and what is wrong with the bad ones.

    Args:
        ask: as of `keras_attention.export.bulk.answer_lines`.
        part: the `Part`.
        folder: where to write.
        batch_size: how many lines go through the model at a time.

    Returns:
        The numbers of lines and of bad ones. A bad line has an empty line in its place.
    """
    with open(part.path, "rb") as file:
        file.seek(part.start)
        data = file.read(part.size)
    lines = data.removesuffix(b"\n").split(b"\n")
    texts, errors = [], []
    for place, line in enumerate(lines):
        line = line.removesuffix(b"\r")
        line = line.removeprefix(b"\xef\xbb\xbf") if part.start == place == 0 else line
        try:
            texts.append(line.decode("utf-8"))
        except UnicodeDecodeError as error:
            texts.append("")
            errors.append((place, f"no UTF-8: {error.reason}"))
    answers = []
    while len(answers) < len(texts):
        first = len(answers)
        some = texts[first : first + batch_size]
        try:
            answers += answer_lines(ask, some, batch_size, lambda place: "")
        except DataError as error:
            errors.append((first + len(error.answers), str(error).removeprefix(": ")))
            answers += [*error.answers, ""]
    for place, _ in errors:
        answers[place] = ""
    reported = [
        f"{part.path}\t{part.line + place}\t{' '.join(what.split())}\n"
        for place, what in sorted(errors)
    ]
    _write(folder / f"{part.number:06d}{ERRORS}", "".join(reported))
    _write(folder / f"{part.number:06d}", "".join(f"{answer}\n" for answer in answers))
    return len(texts), len(errors)


class Work:
    """The parts of a run: which are done, which are to do.

    Args:
        paths: the files of lines.
        output: the file of answers, which appears when all parts are done.
        lines: how many lines a part has.
        made_of: dictionary of what else decides about the answers: the model, its endpoint.

    Raises:
        DataError: if what is done so far is of other files, or made with something else.
        FileExistsError: if the output exists.
    """

    def __init__(self, paths, output, lines, made_of):
        self.output = Path(output).absolute()
        self.folder = self.output.with_name(self.output.name + ".parts")
        if self.output.exists():
            raise FileExistsError(f"{output} exists already. Give another --output, or remove it.")
        paths = [Path(path).absolute() for path in paths]
        stats = [[str(path), path.stat().st_size, path.stat().st_mtime_ns] for path in paths]
        plan = json.dumps({**made_of, "files": stats, "lines": lines}, indent=1, sort_keys=True)
        self.parts = find_parts(paths, lines)
        self.folder.mkdir(parents=True, exist_ok=True)
        notes = self.folder / PLAN
        if not notes.exists():
            _write(notes, plan)
        elif notes.read_text("utf-8") != plan:
            raise DataError(
                f"{self.folder} holds parts of other files, or made with another model, endpoint "
                "or --part-lines. Delete it to begin anew."
            )

    def to_do(self):
        return [part for part in self.parts if not (self.folder / f"{part.number:06d}").exists()]

    def join(self):
        """Makes the output, and the file of bad lines beside it, of the parts."""
        targets = {"": self.output, ERRORS: self.output.with_name(self.output.name + ERRORS)}
        for suffix, target in sorted(targets.items(), reverse=True):
            new = self.folder / f"joined{suffix}"
            with open(new, "wb") as file:
                for part in self.parts:
                    with open(self.folder / f"{part.number:06d}{suffix}", "rb") as piece:
                        shutil.copyfileobj(piece, file)
            os.replace(new, target)
        shutil.rmtree(self.folder)


def hash_of(path):
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def _write(path, text):
    with whole(path) as new:
        new.write_text(text, "utf-8", newline="\n")

"""Lists of texts from files: one text a line, or several with tabs between them."""

import gzip
import lzma
import zlib
from pathlib import Path

OPENERS = {".gz": gzip.open, ".xz": lzma.open}


class DataError(ValueError):
    """A file of texts that can not be read as what it should be."""


def read_lines(path):
    """The lines of a UTF-8 text file.

    Args:
        path: the file, plain, or compressed if its name ends in `.gz` or `.xz`.

    Returns:
        List of str, one a line, without the line ends. Only a line feed ends a line, with a
        carriage return before it or not; other characters that Unicode takes for line ends stay in
        the text. A byte order mark at the start is dropped.

    Raises:
        FileNotFoundError: if there is no such file.
        DataError: if the archive is corrupt, or a line is not UTF-8, naming the line.
    """
    return split_lines(_read_bytes(Path(path)), path)


def split_lines(data, name):
    """The lines of UTF-8 text, as of `read_lines`.

    Args:
        data: bytes.
        name: what error messages call their source.

    Returns:
        List of str, one a line.

    Raises:
        DataError: if a line is not UTF-8, naming it.
    """
    lines = data.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    if not lines[-1]:
        lines.pop()
    return [_decode(line, name, number) for number, line in enumerate(lines, 1)]


def read_parallel(source_path, target_path):
    """Two files of which line n of one is the translation of line n of the other.

    Args:
        source_path: the file of source texts, as `read_lines` takes it.
        target_path: the file of target texts.

    Returns:
        `(sources, targets)`: two lists of str of one length.

    Raises:
        FileNotFoundError: if a file is missing.
        DataError: if the files have different numbers of lines, or can not be read.
    """
    sources, targets = read_lines(source_path), read_lines(target_path)
    if len(sources) != len(targets):
        raise DataError(
            f"parallel files must have as many lines as each other. Got {len(sources)} in "
            f"{source_path} and {len(targets)} in {target_path}"
        )
    return sources, targets


def read_pairs(path):
    """A file of lines `source<TAB>target`; what follows a second tab is left out.

    Args:
        path: the file, as `read_lines` takes it.

    Returns:
        `(sources, targets)`: two lists of str of one length.

    Raises:
        FileNotFoundError: if there is no such file.
        DataError: if a line has no tab, naming it, or the file can not be read.
    """
    sources, targets = [], []
    for number, line in enumerate(read_lines(path), 1):
        source, *rest = line.split("\t")
        if not rest:
            raise DataError(
                f"{path}, line {number}: expected source, tab, target. Got {line!r:.80}, "
                "which has no tab"
            )
        sources.append(source)
        targets.append(rest[0])
    return sources, targets


def _read_bytes(path):
    if not path.exists():
        raise FileNotFoundError(f"no such file: {path}")
    if not path.is_file():
        raise DataError(f"{path} must be a file of text")
    try:
        with OPENERS.get(path.suffix.lower(), open)(path, "rb") as file:
            return file.read()
    except (EOFError, lzma.LZMAError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path} is not a whole {path.suffix} archive: {error}") from error


def _decode(line, path, number):
    try:
        return line.removesuffix(b"\r").decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}, line {number}: expected UTF-8. Got the byte 0x{line[error.start]:02X} at "
            f"position {error.start} of the line"
        ) from None

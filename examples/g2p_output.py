"""Files and folders that are written whole or not at all."""

import contextlib
import os
import shutil
import tempfile
from pathlib import Path


class OutputError(OSError):
    """An output folder that can not be written."""


def check_folder(folder):
    """Makes `folder` if it is missing and tries that a file can be written into it."""
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise OutputError(
            f"--output {folder}: expected a folder that can be written, got: {error.strerror}"
        ) from None


@contextlib.contextmanager
def whole(path):
    """Gives a temporary path beside `path`, which takes its name once the block has succeeded.

    What was at `path` before, a file or a folder, stays until then.
    """
    path = Path(path)
    scratch = Path(tempfile.mkdtemp(dir=path.parent, prefix=".unfinished-"))
    try:
        yield scratch / path.name
        if path.is_dir():  # a folder can not be replaced in one step
            os.replace(path, scratch / "old")
        os.replace(scratch / path.name, path)
    finally:
        shutil.rmtree(scratch)

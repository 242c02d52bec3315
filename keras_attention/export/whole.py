"""A file or folder that appears whole or not at all."""

import contextlib
import os
import shutil
import tempfile
from pathlib import Path


@contextlib.contextmanager
def whole(path, overwrite=False, is_like=Path.is_file):
    """Gives a temporary path beside `path`, which takes its name once the block has succeeded.

    Args:
        path: where the file or folder, e.g. of a model with inputs `[B, S]`, is to appear.
        overwrite: whether something may be there already. It stays until the new one is complete.
        is_like: function from a path to whether what is there is of the kind that may be replaced.

    Yields:
        The temporary path, where nothing is yet.

    Raises:
        FileExistsError: if something is there and `overwrite` is False.
        FileNotFoundError: if the folder around it does not exist.
    """
    path = Path(path)
    if path.exists() and not overwrite:
        raise FileExistsError(
            f"{path} exists already. Give another path, or replace it by `overwrite=True` (in the "
            "command --overwrite)."
        )
    if path.exists() and not is_like(path):
        raise FileExistsError(f"{path} is nothing that an export wrote. It is not overwritten.")
    if not path.absolute().parent.is_dir():
        raise FileNotFoundError(f"The folder {path.absolute().parent} does not exist.")
    scratch = Path(tempfile.mkdtemp(dir=path.absolute().parent, prefix=".unfinished-"))
    try:
        yield scratch / path.name
        if path.exists():  # a folder can not be replaced in one step
            os.replace(path, scratch / "old")
        os.replace(scratch / path.name, path)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)

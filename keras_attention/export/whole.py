"""A file or folder that appears whole or not at all."""

import contextlib
import os
import shutil
import socket
import tempfile
import zlib
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
    # It tells whose it is: the target on this machine, and the process.
    mark = f".unfinished-{zlib.crc32(f'{socket.gethostname()}/{path.name}'.encode()):08x}-"
    _remove_what_was_killed(path, mark)
    prefix = f"{mark}{os.getpid()}-"
    scratch = Path(tempfile.mkdtemp(dir=path.absolute().parent, prefix=prefix))
    try:
        yield scratch / path.name
        if path.exists():  # a folder can not be replaced in one step
            os.replace(path, scratch / f"{path.name}.old")
        os.replace(scratch / path.name, path)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _remove_what_was_killed(path, mark):
    """Removes temporary folders of processes that are no more; live ones keep theirs."""
    for folder in path.absolute().parent.glob(f"{mark}*-*"):
        process = folder.name[len(mark) :].partition("-")[0]
        only_copy = (folder / f"{path.name}.old").exists() and not path.exists()
        if process.isdecimal() and not only_copy and not _lives(int(process)):
            shutil.rmtree(folder, ignore_errors=True)


def _lives(process):
    if os.name != "posix":  # elsewhere a signal of 0 is no question
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass
    return True

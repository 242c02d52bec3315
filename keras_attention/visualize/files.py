"""Files of pictures and pages."""

import contextlib
from pathlib import Path


def check_folder(path):
    """Raises unless there is a folder for a file, e.g. of weights `[T, S]`.

    Args:
        path: the file's path.

    Raises:
        FileNotFoundError: if not.
    """
    folder = Path(path).absolute().parent
    if not folder.is_dir():
        raise FileNotFoundError(f"`path`: there is no folder {str(folder)!r}.")


@contextlib.contextmanager
def replacing(path):
    """Gives a path to write to, which takes the place of `path` once the block has succeeded.

    Args:
        path: where the file, e.g. of weights `[T, S]`, is to be; what is there stays until then.

    Yields:
        The temporary path.
    """
    path = Path(path)
    unfinished = path.with_name(f".unfinished-{path.name}")
    try:
        yield unfinished
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)

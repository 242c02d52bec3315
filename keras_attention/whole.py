"""A file or folder that appears whole or not at all."""

import contextlib
import os
import shutil
import socket
import tempfile
import zlib
from pathlib import Path

ATTEMPTS = 100


@contextlib.contextmanager
def whole(path, overwrite=True, is_like=None):
    """Gives a temporary path beside `path`, which takes its name once the block has succeeded.

    Where it fails, as on a full disk, what was at `path` before is as it was. Of several processes
    that write to one path, each finds its own there or another's, never a mixture; without
    `overwrite` the first one's stays.

    Args:
        path: where the file or folder, e.g. of a model with inputs `[B, S]`, is to appear. (If it
            is a link, where it leads to.)
        overwrite: whether something may be there already: a file for a file, a folder for a folder.
        is_like: function from a path to whether what is there is of the kind that may be replaced;
            None for anything.

    Yields:
        The temporary path, where nothing is yet.

    Raises:
        FileExistsError: if something is there and `overwrite` is False.
        FileNotFoundError: if the folder around it does not exist.
    """
    path = Path(path)
    target = Path(os.path.realpath(path))
    if target.exists() and not overwrite:
        raise _exists(path)
    if target.exists() and is_like is not None and not is_like(target):
        raise FileExistsError(f"{path} is nothing that an export wrote. It is not overwritten.")
    check_folder(target)
    # It tells whose it is: the target on this machine, and the process.
    whose = os.fsencode(f"{socket.gethostname()}/{target.name}")
    mark = f".unfinished-{zlib.crc32(whose):08x}-"
    _remove_what_was_killed(target, mark)
    scratch = Path(tempfile.mkdtemp(dir=target.parent, prefix=f"{mark}{os.getpid()}-"))
    try:
        yield scratch / target.name
        if overwrite:
            _replace(scratch / target.name, target)
        elif not _put(scratch / target.name, target):
            raise _exists(path)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


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


def _exists(path):
    return FileExistsError(
        f"{path} exists already. Give another path, or replace it by `overwrite=True` (in the "
        "command --overwrite)."
    )


def _put(new, target):
    """Whether the target was free and `new` is now there, in one step."""
    if new.is_dir():
        try:
            os.rename(new, target)
        except OSError:
            if target.exists():
                return False
            raise
        return True
    try:
        os.link(new, target)
    except FileExistsError:
        return False
    except OSError:  # a file system without links
        if target.exists():
            return False
        os.replace(new, target)
    return True


def _replace(new, target):
    """Puts `new` in the place of what is there, if it is of the same kind."""
    if new.is_file() and target.is_file():
        shutil.copymode(target, new)
    olds = []
    try:
        for number in range(ATTEMPTS):  # as often as other processes put something there meanwhile
            try:
                return os.replace(new, target)
            except OSError:
                if number == ATTEMPTS - 1 or not new.is_dir() or target.is_file():
                    raise
            # A folder can not be replaced in one step.
            with contextlib.suppress(FileNotFoundError):
                os.replace(target, old := new.with_name(f"{target.name}.old{number}"))
                olds.append(old)
    except BaseException:
        if olds and not target.exists():
            os.replace(olds[-1], target)
        raise


def _remove_what_was_killed(target, mark):
    """Removes temporary folders of processes that are no more; live ones keep theirs."""
    for folder in target.parent.glob(f"{mark}*-*"):
        process = folder.name[len(mark) :].partition("-")[0]
        if not process.isdecimal() or _lives(int(process)):
            continue
        with contextlib.suppress(OSError):  # e.g. another process removes it
            olds = any(x.name.startswith(f"{target.name}.old") for x in folder.iterdir())
            if target.exists() or not olds:
                shutil.rmtree(folder)


def _lives(process):
    if os.name != "posix":  # elsewhere a signal of 0 is no question
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        pass
    return True

"""Whether there is room for weights, asked before HDF5 writes them: it crashes on a full disk."""

import math
import os
import shutil
import tempfile

import numpy as np

ENTRY, START = 4096, 2**16  # bytes for what HDF5 writes about a weight, and about the file


def check_room(model, folder):
    """Raises unless the weights of a model fit on the disk.

    HDF5 does not tell that a disk is full: the process ends with a segmentation fault when such a
    file is closed. So a file of that size is asked for and deleted again.

    Args:
        model: a Keras model, with weights of any shapes `[...]`.
        folder: where they are to be written.

    Raises:
        OSError: if they do not fit, saying how many bytes are needed.
    """
    size = _size(model)
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, size)
            elif shutil.disk_usage(folder).free < size:
                raise OSError(28, "No space left on device")
    except OSError as error:
        told = f"{error.strerror}: {size:,} bytes are needed for the weights"
        raise OSError(error.errno, told, str(folder)) from None


def _size(model):
    """The most bytes of a file of the model's weights and its optimizer's."""
    optimizer = getattr(model, "optimizer", None)
    weights = [*model.variables, *(optimizer.variables if optimizer is not None else ())]
    return START + sum(ENTRY + math.prod(x.shape) * _bytes(x.dtype) for x in weights)


def _bytes(dtype):
    try:
        return np.dtype(dtype).itemsize
    except TypeError:  # bfloat16 and the like, which are saved as something else
        return 4

"""What the command lines of the examples share."""

import argparse
import tempfile
from pathlib import Path

from keras_attention.text import DataError


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


def unicode_text(argument):
    """An argument that is a text. (Bytes that are no UTF-8 come as half letters.)"""
    try:
        argument.encode("utf-8")
    except UnicodeEncodeError:
        raise argparse.ArgumentTypeError(f"expected UTF-8 text, got {argument!r:.80}") from None
    return argument


def load_model(folder):
    """The model that a run left in its output folder."""
    import keras

    path = folder / "model.keras"
    if not path.is_file():
        raise DataError(f"--model {folder}: it holds no model.keras; train a model first")
    try:
        return keras.saving.load_model(path, compile=False)
    except Exception as error:  # (of many classes)
        reason = str(error).partition("\n")[0][:300]
        raise DataError(f"{path} is no model of this script: {reason}") from None

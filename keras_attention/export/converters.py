"""What the exports share about the tools that do the converting: packages, silence."""

import contextlib
import importlib
import logging

import keras


def check_backend(name):
    """Raises a RuntimeError unless tensors `[...]` are TensorFlow's.

    Args:
        name: the function that needs it.
    """
    if keras.backend.backend() != "tensorflow":
        raise RuntimeError(
            f"`{name}` needs Keras on TensorFlow (KERAS_BACKEND=tensorflow). Received a model on "
            f"{keras.backend.backend()}: save it as .keras, and load it there."
        )


def import_packages(*names):
    """Imports packages that are optional.

    Args:
        names: their names.

    Returns:
        The modules, in a list. (They convert graphs with inputs such as `[B, S]`.)

    Raises:
        ImportError: if one is missing, saying what to install.
    """
    try:
        return [importlib.import_module(name) for name in names]
    except ImportError as error:
        raise ImportError(
            f"The package {error.name} is needed: pip install 'keras-attention-layers[export]'"
        ) from None


@contextlib.contextmanager
def quiet():
    """Without what converters log about nodes and shapes `[...]`: results are compared anyway."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)

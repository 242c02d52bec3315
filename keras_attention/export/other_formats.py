"""What ONNX and LiteRT take of a model: endpoints without texts, in graphs without branches."""

import numpy as np
import tensorflow as tf

from keras_attention.blockwise.choice import all_at_once
from keras_attention.export.comparison import distance
from keras_attention.export.endpoints import input_size
from keras_attention.export.saved_model import endpoints_of
from keras_attention.models.language_model import CausalLM
from keras_attention.models.searches import SAMPLING
from keras_attention.text import END, PAD, START

ENDPOINTS = ("serve_tokens", "encode", "step", "forward")


def plain_function(model, settings, endpoint, fixed=None):
    """An endpoint as a `tf.function` that other formats can hold.

    Args:
        model: a `Seq2Seq`, `Transformer` or `CausalLM`.
        settings: `Settings`.
        endpoint: its name, one of ENDPOINTS.
        fixed: dictionary from an axis to its size, e.g. `{0: 1}` for a batch of one; other axes of
            inputs `[B, S]` are free.

    Returns:
        `(function, names of its inputs)`; the function is traced already.

    Raises:
        ValueError: for another endpoint.
    """
    if endpoint not in ENDPOINTS:
        raise ValueError(
            f"`endpoint` must be one of {', '.join(ENDPOINTS)}. Received: {endpoint!r}."
        )
    drawn = [name for name in SAMPLING if name in settings.search_options]
    if drawn:
        raise ValueError(
            f"`search_options`: only greedy search goes into other formats. Received: {drawn}."
        )
    with all_at_once():
        (found,) = (x for x in endpoints_of(model, settings) if x.name == endpoint)
        specs = [_with_sizes(spec, fixed or {}) for spec in found.inputs]
        function = tf.function(found.function, input_signature=specs, autograph=False)
        function.get_concrete_function()
    return function, [spec.name for spec in specs]


def _with_sizes(spec, fixed):
    shape = [
        fixed.get(axis, size) if size is None else size for axis, size in enumerate(spec.shape)
    ]
    return tf.TensorSpec(shape, spec.dtype, spec.name)


def example_inputs(model, endpoint, function, fixed=None):
    """Inputs to compare with: of two lengths and batches where these are free, with padding.

    Args:
        model: the model.
        endpoint, fixed: as of `plain_function`.
        function: what `plain_function` returned.

    Yields:
        Lists of arrays, e.g. ids `[B, S]`.
    """
    fixed = fixed or {}
    continues = isinstance(model, CausalLM)
    size = input_size(model)
    for rows, steps in ((3, 6), (1, 9)):
        rows, steps = fixed.get(0, rows), fixed.get(1, steps)
        ids = END + 1 + np.arange(rows * steps).reshape(rows, steps) * 5 % (size - END - 1)
        if rows > 1 and steps > 3:
            ids[1, -2:], ids[2, -1] = PAD, END
        ids = (ids[:, ::-1] if continues else ids).astype("int32")
        if endpoint == "forward" and not continues:
            target = START + ids % (model.output_shape[-1] - START)
            yield [ids, target.astype("int32")]
        elif endpoint == "step":
            yield _step_inputs(model, ids, function)
        else:
            yield [ids]


def _step_inputs(model, ids, function):
    """The token to begin with, and what `encode` gives for the ids."""
    import keras

    if isinstance(model, CausalLM):
        token, state = model.start(ids)
        memory = None
    else:
        memory, state = model.inference.encode(ids)
        token = np.full(len(ids), START, "int32")
    leaves = [x for part in (state, memory) for x in keras.tree.flatten(part) if x is not None]
    arrays = [np.asarray(x) for x in (token, *leaves)]
    ranks = [spec.shape.rank for spec in function.input_signature]
    return [x if x.ndim == rank else x[None] for x, rank in zip(arrays, ranks, strict=True)]


def largest_difference(found, expected, asked, tolerance, what):
    """How far numbers are apart at most, relative where they are above 1.

    Args:
        found, expected: dictionaries of arrays, e.g. logits `[B, T, V]`.
        asked: the inputs, for the message.
        tolerance: the largest difference that is allowed.
        what: what gave `found`.

    Returns:
        The difference.

    Raises:
        RuntimeError: if something differs by more, in shape, or in an integer.
    """
    worst = 0.0
    for name, wanted in expected.items():
        got, wanted = np.asarray(found[name]), np.asarray(wanted)
        gap = distance(got, wanted)
        if not gap <= tolerance:
            shown = f"{got.tolist()!r:.200} instead of {wanted.tolist()!r:.200}"
            raise RuntimeError(
                f"{what} gives another {name} than the model for inputs of shapes "
                f"{[x.shape for x in asked]}: {shown}. Nothing was written."
            )
        worst = max(worst, gap)
    return worst

"""`export_litert`: an endpoint of a model as a LiteRT (TensorFlow Lite) file."""

import tempfile
from pathlib import Path

from keras_attention.export.converters import check_backend, import_packages, quiet
from keras_attention.whole import whole

ENDPOINTS = ("serve_tokens", "forward")
BATCH = {0: 1}  # recurrent layers and loops of LiteRT want to know it


def export_litert(
    model,
    path,
    endpoint="serve_tokens",
    max_length=None,
    search_options=None,
    int8=False,
    overwrite=False,
):
    """Writes one endpoint of a model as a LiteRT file, for phones and small devices.

    The batch is 1, as LiteRT's recurrent layers and loops need it; lengths are free. Ids go in and
    come out. The file is opened in LiteRT (package ai-edge-litert, `pip install
    keras-attention-layers[export]`) and compared with the model, for two lengths, before it
    appears.

    Args:
        model: a `Seq2Seq`, `Transformer` or `CausalLM`.
        path: the file to write.
        endpoint: "serve_tokens" (source `[1, S]` -> tokens `[1, L]`, score `[1]`, by greedy
            search) or "forward".
        max_length: L, as of `export_servable`.
        search_options: dictionary of options of greedy search, e.g. `{"min_length": 2}`.
        int8: whether matrices are stored in 8 bits, which makes the file smaller by a factor of up
            to 4 and numbers less exact: tokens may differ then, and the difference is told but is
            no error.
        overwrite: whether to replace what is at `path`.

    Returns:
        A dictionary: "inputs" and "outputs" (lists of names), "bytes", "largest_difference" from
        the model's numbers (infinite if tokens differ, which with `int8` they may).

    Masking:
        Id 0 is padding, as in the model.

    Raises:
        FileExistsError: if `path` exists and `overwrite` is False.
        ImportError: if ai-edge-litert is missing.
        ValueError: for another kind of model, endpoint or option.
        RuntimeError: if the file can not be made or opened, or gives other results than the model.
            Nothing is written then.

    Example: `export_litert(model, "model.tflite")`
    """
    import tensorflow as tf

    from keras_attention.export.endpoints import settings_for

    check_backend("export_litert")
    (interpreters,) = import_packages("ai_edge_litert.interpreter")
    from keras_attention.export.other_formats import (
        example_inputs,
        largest_difference,
        plain_function,
    )

    if endpoint not in ENDPOINTS:  # LiteRT has no states that grow, nor empty ones
        raise ValueError(
            f"`endpoint` must be one of {', '.join(ENDPOINTS)} for LiteRT. Received: {endpoint!r}."
        )
    settings = settings_for(model, max_length, None, 4, search_options)
    if "quantized" in model.get_config():
        raise ValueError(
            "LiteRT does not take what `model.quantize` makes. Export the model as it was before, "
            "with `int8=True` (in the command --int8)."
        )
    function, names = plain_function(model, settings, endpoint, BATCH)
    with whole(path, overwrite, Path.is_file) as file:
        file.write_bytes(_converted(tf, model, function, int8))
        try:
            runner = interpreters.Interpreter(str(file)).get_signature_runner()
        except Exception as error:
            raise RuntimeError(f"LiteRT can not open its own `{endpoint}`: {error}") from None
        gaps, tolerance = [], float("inf") if int8 else 1e-3
        for inputs in example_inputs(model, endpoint, function, BATCH):
            found = runner(**dict(zip(names, inputs, strict=True)))
            gap = largest_difference(found, function(*inputs), inputs, tolerance, "LiteRT")
            gaps.append(gap)
        size = file.stat().st_size
    return {
        "inputs": names,
        "outputs": sorted(found),
        "bytes": size,
        "largest_difference": max(gaps),
    }


def _converted(tf, model, function, int8):
    module = tf.Module()
    module.weights = [variable.value for variable in model.variables]
    with tempfile.TemporaryDirectory() as folder, quiet():
        tf.saved_model.save(module, folder, function.get_concrete_function())
        converter = tf.lite.TFLiteConverter.from_saved_model(folder)
        if int8:
            converter.optimizations = [tf.lite.Optimize.DEFAULT]
        try:
            return converter.convert()
        except Exception as error:  # (of several classes, none of them public)
            raise RuntimeError(
                f"LiteRT can not hold this model: {str(error).partition(chr(10))[0]:.300}"
            ) from None

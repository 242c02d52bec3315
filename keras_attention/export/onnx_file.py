"""`export_onnx`: an endpoint of a model as an ONNX file."""

from pathlib import Path

from keras_attention.export.converters import check_backend, import_packages, quiet
from keras_attention.whole import whole


def export_onnx(
    model,
    path,
    endpoint="serve_tokens",
    max_length=None,
    search_options=None,
    overwrite=False,
    opset=18,
):
    """Writes one endpoint of a model as an ONNX file with free batch and lengths.

    Needs the packages tf2onnx, onnx and onnxruntime (`pip install
    keras-attention-layers[export]`). ONNX has no texts: ids go in and come out, as of the same
    endpoint of `export_servable`. The converter has errors that only show in the results, so the
    file is opened in onnxruntime and compared with the model, on two batches of unlike lengths with
    padding, before it appears.

    Args:
        model: a `Seq2Seq`, `Transformer` or `CausalLM`.
        path: the file to write.
        endpoint: "serve_tokens" (ids `[B, S]` -> tokens `[B, L]`, score `[B]`, by greedy search),
            "encode", "step" or "forward".
        max_length: L, as of `export_servable`.
        search_options: dictionary of options of greedy search, e.g. `{"min_length": 2}`.
        overwrite: whether to replace what is at `path`.
        opset: version of ONNX's operators.

    Returns:
        A dictionary: "inputs" and "outputs" (lists of names), "bytes", "largest_difference" from
        the model's numbers.

    Masking:
        Id 0 is padding, as in the model.

    Raises:
        FileExistsError: if `path` exists and `overwrite` is False.
        ImportError: if a package is missing.
        ValueError: for another kind of model, endpoint or option.
        RuntimeError: if the file can not be made, can not be opened, or gives other results than
            the model. Nothing is written then.

    Example: `export_onnx(model, "model.onnx")`
    """
    from keras_attention.export.endpoints import settings_for

    check_backend("export_onnx")
    converter, runtime = import_packages("tf2onnx", "onnxruntime")
    from keras_attention.export.other_formats import (
        example_inputs,
        largest_difference,
        plain_function,
    )

    settings = settings_for(model, max_length, None, 4, search_options)
    function, names = plain_function(model, settings, endpoint)
    with whole(path, overwrite, Path.is_file) as file:
        with quiet():
            converter.convert.from_function(
                function,
                input_signature=function.input_signature,
                opset=opset,
                output_path=str(file),
            )
        options = runtime.SessionOptions()
        options.log_severity_level = 4
        try:
            session = runtime.InferenceSession(
                str(file), options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:
            raise RuntimeError(
                f"onnxruntime can not open what tf2onnx made of `{endpoint}`: {error}"
            ) from None
        outputs = [output.name for output in session.get_outputs()]
        gaps = []
        for inputs in example_inputs(model, endpoint, function):
            found = session.run(outputs, dict(zip(names, inputs, strict=True)))
            gaps.append(
                largest_difference(
                    dict(zip(outputs, found, strict=True)), function(*inputs), inputs, 1e-3, "ONNX"
                )
            )
        size = file.stat().st_size
    return {"inputs": names, "outputs": outputs, "bytes": size, "largest_difference": max(gaps)}

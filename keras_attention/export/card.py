"""The model card of a servable: what it is, what it was made with, what it can be asked."""

import datetime
import hashlib
import json

import keras

from keras_attention.export.servable import FORMAT
from keras_attention.models.language_model import CausalLM


def model_card(model, settings, loaded, checked, command=None, metrics=None):
    """What is worth knowing about a servable, as plain values.

    Args:
        model: the model it was made of, with ids `[B, T]`.
        settings: its `Settings`.
        loaded: what `tf.saved_model.load` returned.
        checked: what `compare` returned.
        command: str, how the model was trained.
        metrics: what `check_metrics` returned.

    Returns:
        A dictionary that JSON can hold.
    """
    import tensorflow as tf

    from keras_attention import __version__

    config = model.get_config()
    tokenizers = {
        name: _tokenizer(tokenizer)
        for name, tokenizer in tokenizers_of(model).items()
        if tokenizer is not None
    }
    return _as_json(
        {
            "format": FORMAT,
            "model": type(model).__name__,
            "name": model.name,
            "written": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "versions": {
                "keras_attention": __version__,
                "keras": keras.version(),
                "tensorflow": tf.__version__,
            },
            "requires": _requirements(tokenizers),
            "parameters": model.count_params(),
            "dtype": _precision(model, config),
            "config": {name: x for name, x in config.items() if name not in tokenizers},
            "tokenizers": tokenizers,
            "search": settings._replace(search_options=_plain_options(settings))._asdict(),
            "endpoints": {
                name: {
                    "inputs": _tensors(signature.structured_input_signature[1]),
                    "outputs": _tensors(signature.structured_outputs),
                }
                for name, signature in sorted(loaded.signatures.items())
            },
            "compared_with_model": checked,
            "command": command,
            "metrics": metrics,
        }
    )


def _precision(model, config):
    """The name of the model's dtype policy; of a quantised one as of its layers."""
    name, quantized = model.dtype_policy.name, config.get("quantized")
    return f"{quantized['mode']}_from_{name}" if quantized else name


def check_metrics(metrics):
    """A user's metrics as plain values.

    Args:
        metrics: dictionary of numbers, texts, lists or arrays `[...]`; or None.

    Returns:
        The dictionary.

    Raises:
        ValueError: if it holds something that JSON can not, such as NaN.
    """
    try:
        return _as_json(dict(metrics or {}))
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"`metrics` must be a dictionary of plain numbers and texts: {error}."
        ) from None


def _as_json(value):
    return json.loads(json.dumps(value, allow_nan=False, default=_plain))


def tokenizers_of(model):
    """The tokenizers of a model for ids `[B, T]`, by their names in its config; None for none."""
    if isinstance(model, CausalLM):
        return {"tokenizer": model.tokenizer}
    return {"source": model.inference.source, "target": model.inference.target}


def _plain_options(settings):
    """The options without a generator of seeds, which stands for none."""
    options = settings.search_options
    return {k: x for k, x in options.items() if not isinstance(x, keras.random.SeedGenerator)}


def _tokenizer(tokenizer):
    config = json.dumps(tokenizer.get_config(), sort_keys=True, default=str)
    return {
        "class": type(tokenizer).__name__,
        "size": tokenizer.size,
        "sha256": hashlib.sha256(config.encode("utf-8")).hexdigest(),
    }


def _requirements(tokenizers):
    subwords = any(x["class"] == "SubwordTokenizer" for x in tokenizers.values())
    return ["tensorflow", *(["tensorflow_text"] if subwords else [])]


def _tensors(specs):
    return {
        name: {"dtype": x.dtype.name, "shape": list(x.shape)} for name, x in sorted(specs.items())
    }


def _plain(value):
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is none of these")

"""`export_servable`: a trained model as a SavedModel that needs none of our code."""

import json

import keras

from keras_attention.export.converters import quiet
from keras_attention.export.other_backends import export_elsewhere
from keras_attention.export.servable import CARD
from keras_attention.whole import whole


def export_servable(
    model,
    path,
    beam_width=4,
    max_length=None,
    max_input_length=None,
    search_options=None,
    beam_options=None,
    overwrite=False,
    examples=None,
    command=None,
    metrics=None,
):
    """Writes a model as a SavedModel with text in and text out, vocabularies and search inside.

    TensorFlow alone loads it, in Python, in C++ or in TensorFlow Serving; batch and lengths are
    free. Before the folder appears, it is loaded again and asked the same as the model. (Where
    Keras runs on JAX or PyTorch, a process of its own with Keras on TensorFlow writes it, and
    logits are compared with those of the model here.)

        serving_default  text [B] -> translation, score [B], tokens, target_tokens [B, L],
                         source_tokens [B, S], attention [B, L, S]
        beam             text [B] -> translation, score [B, K], tokens [B, K, L]
        serve_tokens     source [B, S] -> tokens [B, L], score [B]
        encode           source [B, S] -> memory_0, ..., state_0, ...
        step             token [B], state_0, ..., memory_0, ... -> logits [B, V],
                         next_state_0, ..., attention [B, S]
        forward          source [B, S], target [B, T] -> logits [B, T, V]

    Of a `CausalLM` the text is a prompt, and instead of the translation there is `generated`, the
    prompt with what follows it; `serve_tokens`, `encode` and `forward` take `ids` `[B, T]`, padded
    in front, and `encode` gives the first `token` for `step`. A model that was made without
    tokenizers has no `serving_default` of its own (`serve_tokens` stands in), and its `beam` takes
    ids.

    Args:
        model: a `Seq2Seq`, `Transformer` or `CausalLM`, trained or loaded.
        path: the folder to write. It appears whole or not at all.
        beam_width: K of the endpoint `beam`, at least 2.
        max_length: L, the most tokens of an output, its end included; by default 128, or what the
            positions of the model leave room for.
        max_input_length: the most tokens of an input, its end included: longer ones are an error.
            By default what positions leave room for, or without limit.
        search_options: dictionary of options of the search in `serving_default` and
            `serve_tokens`, e.g. `{"min_length": 2}` or `{"temperature": 0.8, "top_k": 40}`.
        beam_options: dictionary of options of `beam`, e.g. `{"length_penalty": 0.6}`.
        overwrite: whether to replace what is at `path`.
        examples: list of str that the check asks for; by default a few tokens.
        command: str for the model card: how the model was trained.
        metrics: dictionary for the model card: what was measured.

    Returns:
        The model card, a dictionary, which lies beside the model as `model_card.json`.

    Masking:
        Id 0 is padding. The output for a text without tokens is empty, with score 0; an empty batch
        gives an empty batch.

    Raises:
        FileExistsError: if `path` exists and `overwrite` is False.
        ValueError: for another kind of model, a number out of range, or an unknown option.
        RuntimeError: if what was written does not give what the model gives. Nothing is written
            then.

    Example:

    >>> import tempfile
    >>> from keras_attention import CharacterTokenizer, export_servable, load_servable, seq2seq
    >>> letters = CharacterTokenizer.fit(["abc"])
    >>> model = seq2seq(letters, letters, units=8)
    >>> path = tempfile.mkdtemp() + "/servable"
    >>> card = export_servable(model, path, max_length=5)
    >>> sorted(card["endpoints"])
    ['beam', 'encode', 'forward', 'serve_tokens', 'serving_default', 'step']
    >>> load_servable(path).translate(["abc"]) == model.translate(["abc"], max_length=5)
    True
    """
    import tensorflow as tf

    from keras_attention.export.card import check_metrics, model_card
    from keras_attention.export.comparison import compare
    from keras_attention.export.endpoints import settings_for

    settings = settings_for(
        model, max_length, max_input_length, beam_width, search_options, beam_options
    )
    metrics = check_metrics(metrics)
    with whole(path, overwrite, is_export) as folder:
        if keras.backend.backend() != "tensorflow":
            given = {"beam_width": beam_width, "max_length": max_length, "metrics": metrics}
            given |= {"max_input_length": max_input_length, "search_options": search_options}
            given |= {"beam_options": beam_options, "examples": examples, "command": command}
            return export_elsewhere(model, folder, given)
        _write(model, settings, folder)
        loaded = tf.saved_model.load(str(folder))
        tolerance = 1e-3 if model.compute_dtype in ("float32", "float64") else 0.1
        checked = compare(loaded, model, settings, examples, tolerance)
        card = model_card(model, settings, loaded, checked, command, metrics)
        (folder / CARD).write_text(json.dumps(card, indent=1, ensure_ascii=False), "utf-8")
    return card


def is_export(path):
    """Whether a SavedModel, with whatever inputs `[B, S]`, or an empty folder is there."""
    return path.is_dir() and ((path / "saved_model.pb").is_file() or not any(path.iterdir()))


def endpoints_of(model, settings):
    """The endpoints of a model.

    Args:
        model: a `Seq2Seq`, `Transformer` or `CausalLM`.
        settings: `Settings`.

    Returns:
        A list of `Endpoint`: functions of ids `[B, S]` or texts `[B]`.
    """
    from keras_attention.export.continuing import continuing_endpoints
    from keras_attention.export.translating import translating_endpoints
    from keras_attention.models.language_model import CausalLM

    make = continuing_endpoints if isinstance(model, CausalLM) else translating_endpoints
    return make(model, settings)


def _write(model, settings, folder):
    """(`keras.export.ExportArchive` would trace each function twice: searches are large.)"""
    import tensorflow as tf

    module = tf.Module()
    module.weights = [variable.value for variable in model.variables]  # without the optimizer's
    seed = settings.search_options.get("seed")
    if isinstance(seed, keras.random.SeedGenerator):
        module.seed = seed.state.value
    signatures = {
        name: tf.function(
            function, input_signature=list(inputs), autograph=False
        ).get_concrete_function()
        for name, function, inputs in endpoints_of(model, settings)
    }
    if "serving_default" not in signatures:
        signatures["serving_default"] = signatures["serve_tokens"]
    with quiet():
        tf.saved_model.save(module, str(folder), signatures)

"""Asks a SavedModel that `export_servable` wrote.

Needs TensorFlow, and for subwords tensorflow-text, but neither Keras nor keras_attention: where
these are not wanted, this file can be copied and used by itself.
"""

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

CARD = "model_card.json"
FORMAT = 1
KEYS = {"model", "parameters", "dtype", "written", "versions", "requires", "tokenizers"}
KEYS |= {"endpoints"}
HALF_LETTERS = re.compile("[\ud800-\udfff]")
OTHER_FILES = {
    ".onnx": "an ONNX file: open it in onnxruntime",
    ".tflite": "a LiteRT file: open it in ai_edge_litert.interpreter.Interpreter",
    ".keras": "a Keras model: export it first, or open it with keras.saving.load_model",
}


class Alignment(NamedTuple):
    """An output and what its tokens looked at.

    Attributes:
        text, score: the output and its log-probability.
        source_tokens, target_tokens: the S tokens read and the T tokens written, as str.
        attention_scores: `[T, S]` attention weights; None of a model without attention.
    """

    text: str
    score: float
    source_tokens: list
    target_tokens: list
    attention_scores: Any


def read_card(path):
    """The model card of a servable.

    Args:
        path: the folder that `export_servable` wrote; its model takes texts `[B]`.

    Returns:
        A dictionary.

    Raises:
        FileNotFoundError, ValueError: as `Servable`.
    """
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist.")
    if not path.is_dir():
        kind = OTHER_FILES.get(path.suffix.lower(), "a file")
        raise FileNotFoundError(
            f"{path} is {kind}. A folder that `export_servable` wrote is expected here."
        )
    if not (path / "saved_model.pb").is_file():
        raise FileNotFoundError(f"{path} holds no SavedModel (no saved_model.pb).")
    if not (path / CARD).is_file():
        raise FileNotFoundError(f"{path} was not written by `export_servable`: no {CARD}.")
    try:
        card = json.loads((path / CARD).read_text("utf-8"))
        version = card["format"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"{path / CARD} is no model card: {error!r}.") from None
    if version != FORMAT:
        raise ValueError(f"{path / CARD} has format {version}; this version reads {FORMAT}.")
    missing = sorted(KEYS - set(card))
    if missing:
        raise ValueError(f"{path / CARD} is no model card: it lacks {', '.join(missing)}.")
    return card


def what(error):
    """What an error of TensorFlow says, in one line, without where in the graph it was."""
    text = str(getattr(error, "message", error))
    asserted = re.search(r"assertion failed: \[(.*?)\]", text)
    lines = [x for x in text.splitlines() if x.strip() and x != "Graph execution error:"]
    return asserted.group(1) if asserted else (lines or [type(error).__name__])[0][:300]


class Servable:
    """A loaded servable: text in, text out.

    Args:
        path: the folder that `export_servable` wrote.

    Attributes:
        card: its model card, a dictionary.
        model: what `tf.saved_model.load` returned; its `signatures` are the endpoints, for tensors
            `[B]` and `[B, S]`.

    Raises:
        FileNotFoundError: if the folder, or its model card, is not there.
        ImportError: if TensorFlow, or tensorflow-text where the model needs it, is not installed.
        ValueError: if the card is not one that this version reads.

    Example: `Servable("build/model").translate(["some text"])`
    """

    def __init__(self, path):
        self.card = read_card(path)
        import tensorflow as tf

        if "tensorflow_text" in self.card["requires"]:
            import tensorflow_text  # noqa: F401  (registers its operations)

        try:
            self.model = tf.saved_model.load(str(path))
        except Exception as error:  # (of many classes)
            raise ValueError(
                f"{path} can not be loaded, it may be damaged: {what(error)}"
            ) from None

    def translate(self, texts, batch_size=64):
        """The best output for each text.

        Args:
            texts: a str, or a list of str.
            batch_size: how many go through the model at a time; those of like lengths together.

        Returns:
            A list of str in the order of the texts; for one str, one.

        Raises:
            ValueError: if the model continues texts (see `generate`) or takes ids only, an item is
                no str, or one has more tokens than the model takes.
        """
        return self._texts("serving_default", "translation", texts, batch_size)

    def translate_beam(self, texts, batch_size=64):
        """The K best outputs for each text, by beam search.

        Args:
            texts, batch_size: as of `translate`.

        Returns:
            For each text a list of K pairs `(text, score)`, the best first.

        Raises:
            ValueError: as `translate`.
        """
        return self._texts("beam", "translation", texts, batch_size)

    def generate(self, prompts, batch_size=64):
        """Each prompt with what follows it; of a language model.

        Args:
            prompts, batch_size: as of `translate`.

        Returns:
            A list of str; for one str, one.

        Raises:
            ValueError: if the model is no language model, or takes ids only.
        """
        return self._texts("serving_default", "generated", prompts, batch_size)

    def generate_beam(self, prompts, batch_size=64):
        """The K best continuations of each prompt, as `translate_beam` gives them."""
        return self._texts("beam", "generated", prompts, batch_size)

    def alignments(self, texts, batch_size=64):
        """The best output for each text, with the attention weights of each of its tokens.

        Args:
            texts, batch_size: as of `translate`.

        Returns:
            A list of `Alignment`; for one str, one.

        Raises:
            ValueError: as `translate`.
        """
        return self._ask("serving_default", "target_tokens", texts, batch_size, _alignments)

    def _texts(self, endpoint, key, texts, batch_size):
        return self._ask(endpoint, key, texts, batch_size, lambda out: _outputs(out, key))

    def _ask(self, endpoint, key, texts, batch_size, read):
        signature = self.model.signatures.get(endpoint)
        if signature is None or key not in signature.structured_outputs:
            gives = sorted(signature.structured_outputs) if signature is not None else "nothing"
            raise ValueError(
                f"The endpoint `{endpoint}` of this model gives no `{key}`. It gives {gives}."
            )
        single = isinstance(texts, str)
        if not single and not isinstance(texts, Iterable) or isinstance(texts, bytes):
            raise ValueError(f"texts must be a str or a list of str. Received: {texts!r}.")
        if not isinstance(batch_size, int) or batch_size < 1:
            raise ValueError(f"batch_size must be a positive integer. Received: {batch_size!r}.")
        texts = [texts] if single else list(texts)
        for place, text in enumerate(texts):
            if not isinstance(text, str):
                raise ValueError(f"texts[{place}] must be a str. Received: {text!r:.80}.")
            if HALF_LETTERS.search(text):
                raise ValueError(
                    f"texts[{place}] must be Unicode text. Received a lone surrogate: {text!r:.80}."
                )
        results = [None] * len(texts)
        order = sorted(range(len(texts)), key=lambda place: len(texts[place]))
        for first in range(0, len(order), batch_size):
            places = order[first : first + batch_size]
            array = np.array([texts[place].encode("utf-8") for place in places], object)
            for place, result in zip(places, read(_call(signature, array)), strict=True):
                results[place] = result
        return results[0] if single else results


def _call(signature, array):
    import tensorflow as tf

    try:
        found = signature(text=tf.constant(array))
    except tf.errors.InvalidArgumentError as error:
        raise ValueError(what(error)) from None
    return {name: x.numpy() for name, x in found.items()}


def _outputs(outputs, key):
    texts = outputs[key]
    if texts.ndim == 1:
        return [text.decode("utf-8") for text in texts]
    return [
        [(text.decode("utf-8"), float(score)) for text, score in zip(*row, strict=True)]
        for row in zip(texts, outputs["score"], strict=True)
    ]


def _alignments(outputs):
    for row, text in enumerate(outputs["translation"]):
        sources, targets = (
            [token.decode("utf-8") for token in outputs[name][row] if token]
            for name in ("source_tokens", "target_tokens")
        )
        weights = outputs.get("attention")
        if weights is not None:
            weights = weights[row, : len(targets), : len(sources)]
        score = float(outputs["score"][row])
        yield Alignment(text.decode("utf-8"), score, sources, targets, weights)


def load_servable(path):
    """Loads what `export_servable` wrote, for use with TensorFlow alone.

    Args:
        path: the folder.

    Returns:
        A `Servable`: `translate(texts)`, `translate_beam`, `alignments`; of a language model
        `generate` and `generate_beam`. Its `model.signatures` take tensors: texts `[B]`, ids
        `[B, S]`.

    Raises:
        FileNotFoundError, ValueError, ImportError: as `Servable`.

    Example: `load_servable("build/model").translate("some text")`
    """
    return Servable(path)

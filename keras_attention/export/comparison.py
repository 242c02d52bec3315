"""Whether a written servable gives what the model gives, signature by signature."""

import numpy as np
import tensorflow as tf

from keras_attention.export.endpoints import input_size
from keras_attention.models.language_model import CausalLM
from keras_attention.models.searches import SAMPLING
from keras_attention.text import END, PAD, START, UNKNOWN
from keras_attention.text.inputs import to_texts

STEPS = 8  # how far `encode` and `step` are followed


def compare(loaded, model, settings, examples=None, tolerance=1e-3):
    """Asks a loaded SavedModel and the model it was made of the same.

    Args:
        loaded: what `tf.saved_model.load` returned.
        model: the model.
        settings: `Settings` of the servable.
        examples: list of str to try; by default a few tokens of the vocabulary. The empty text
            and an empty batch are tried as well.
        tolerance: how far logits `[B, T, V]` and scores may be apart, relative to their size where
            that is above 1.

    Returns:
        A dictionary: the "texts" tried and the "largest_difference" of numbers.

    Raises:
        RuntimeError: if something differs, naming endpoint, input and both outputs.
    """
    return _Comparison(loaded, model, settings, tolerance).run(examples)


def distance(found, expected):
    """How far arrays are apart at most, relative to the expected numbers where these are above 1.

    Args:
        found, expected: arrays, e.g. logits `[B, T, V]`, in any precision.

    Returns:
        A number: infinite if shapes, or values that are no floating-point numbers, differ.
    """
    if found.shape != expected.shape or found.dtype.kind in "iubOSU":
        return 0.0 if np.array_equal(found, expected) else float("inf")
    found, expected = found.astype("float64"), expected.astype("float64")
    with np.errstate(invalid="ignore"):  # -inf and -inf are the same
        gap = np.abs(found - expected) / np.maximum(1, np.abs(expected))
    return float(np.max(np.where(found == expected, 0, gap), initial=0))


class _Comparison:
    def __init__(self, loaded, model, settings, tolerance):
        self.loaded, self.model, self.settings = loaded, model, settings
        self.tolerance, self.gap = tolerance, 0.0
        self.continues = isinstance(model, CausalLM)
        if self.continues:
            self.tokenizer = self.has_text = model.tokenizer
            self.ids_name = "ids"
        else:
            self.tokenizer = model.inference.source
            self.has_text = self.tokenizer and model.inference.target
            self.ids_name = "source"

    def run(self, examples):
        self.no_rows()
        texts = []
        if self.has_text:
            texts = [*(self.default_texts() if examples is None else examples), ""]
            self.texts(texts)
        ids = self.ids(texts)
        self.forward(ids)
        self.tokens(ids)
        self.by_hand(ids)
        return {"texts": texts, "largest_difference": self.gap}

    def ask(self, name, **inputs):
        return self.loaded.signatures[name](**inputs)

    def same(self, endpoint, found, expected, asked):
        """Raises unless both are equal: numbers within the tolerance, all else exactly."""
        found, expected = np.asarray(found), np.asarray(expected)
        gap = distance(found, expected)
        if not gap <= self.tolerance:
            raise RuntimeError(
                f"The exported endpoint `{endpoint}` does not give what the model gives for "
                f"{asked!r}: {found.tolist()!r:.300} instead of {expected.tolist()!r:.300}."
            )
        self.gap = max(self.gap, gap)

    def default_texts(self):
        """Two texts of tokens in the vocabulary."""
        size = self.tokenizer.size - UNKNOWN - 1
        limit = self.settings.max_input_length or 12
        rows = []
        for count in (3, 11):
            count = max(1, min(count, limit - 1))
            rows.append([UNKNOWN + 1 + (7 * i + count) % size for i in range(count)])
        return [self.tokenizer.decode([row]).numpy()[0].decode("utf-8") for row in rows]

    def ids(self, texts):
        """Ids to ask for: those of the texts, or made up; of a language model padded in front."""
        if texts and not self.continues:
            return self.tokenizer.encode(texts, add_end=True)
        size = input_size(self.model)
        longest = min(5, self.settings.max_input_length or 5)
        ids = (np.arange(3 * longest).reshape(3, longest) * 3) % (size - END - 1) + END + 1
        if longest > 2:
            ids[1, :2] = PAD
        ids = ids if self.continues else ids[:, ::-1]
        return tf.constant(ids, "int32")

    def no_rows(self):
        """An empty batch gives an empty batch."""
        for name, signature in self.loaded.signatures.items():
            (inputs,) = signature.structured_input_signature[1:]
            empty = {
                key: tf.zeros([0, *(1 if n is None else n for n in spec.shape[1:])], spec.dtype)
                for key, spec in inputs.items()
            }
            for key, output in signature(**empty).items():
                if output.shape[0] != 0:
                    raise RuntimeError(
                        f"The exported endpoint `{name}` gives {key} of shape {output.shape} for "
                        "an empty batch."
                    )

    def texts(self, texts):
        ask = self.model.generate if self.continues else self.model.translate
        key = "generated" if self.continues else "translation"
        length, width = self.settings.max_length, self.settings.beam_width
        given = tf.constant(texts)
        found = self.ask("serving_default", text=given)[key]
        if not set(SAMPLING) & set(self.settings.search_options):  # else drawn
            expected = ask(texts, max_length=length, **self.settings.search_options)
            self.same("serving_default", to_texts(found), expected, texts)
        options = {**self.settings.beam_options, "beam_width": width}
        expected = ask(texts, max_length=length, **options)
        self.same("beam", to_texts(self.ask("beam", text=given)[key]), expected, texts)

    def forward(self, ids):
        if self.continues:
            found, given = self.ask("forward", ids=ids), ids
        else:
            size = self.model.output_shape[-1]
            target = tf.range(tf.shape(ids)[0])[:, None] + tf.range(4)
            target = START + target % tf.maximum(size - START, 1)
            found, given = self.ask("forward", source=ids, target=target), [ids, target]
        # In a graph, as the export: in half precision other roundings are other results.
        compute = tf.function(lambda given: self.model(given, training=False), autograph=False)
        self.same("forward", found["logits"], compute(given), ids.numpy())

    def search(self, ids, **options):
        options = {"max_length": self.settings.max_length, "grow_cache": True, **options}
        compute = tf.function(
            lambda ids: self.model.search(ids, **options),
            input_signature=[tf.TensorSpec([None, None], "int32")],
            autograph=False,
        )
        found = compute(ids)
        steps = min(int(np.max(found.lengths)) + 1, found.ids.shape[-1])
        return np.asarray(found.ids)[..., :steps], found.scores

    def tokens(self, ids):
        name = self.ids_name
        found = self.ask("serve_tokens", **{name: ids})
        if not set(SAMPLING) & set(self.settings.search_options):
            expected, scores = self.search(ids, **self.settings.search_options)
            self.same("serve_tokens", found["tokens"], expected, ids.numpy())
            self.same("serve_tokens", found["score"], scores, ids.numpy())
        if not self.has_text:
            options = {**self.settings.beam_options, "beam_width": self.settings.beam_width}
            expected, _ = self.search(ids, **options)
            self.same("beam", self.ask("beam", **{name: ids})["tokens"], expected, ids.numpy())

    def by_hand(self, ids):
        """By `encode` and `step`, each token that the model's greedy search takes is the best."""
        encoded = self.ask("encode", **{self.ids_name: ids})
        token = encoded.pop("token", tf.fill(tf.shape(ids)[:1], START))
        tokens, _ = self.search(ids)
        for chosen in tokens.T[:STEPS]:
            found = self.ask("step", token=token, **encoded)
            logits = found.pop("logits").numpy().astype("float32")
            logits[:, [PAD, START]] = -np.inf
            going_on = chosen != PAD  # a row that has ended is padded
            # The model's tokens are followed, as in half precision others are as good.
            reached = np.take_along_axis(logits, chosen[:, None], 1)[going_on, 0]
            self.same("step", reached, np.max(logits, 1)[going_on], ids.numpy())
            token = tf.constant(chosen, "int32")
            encoded |= {k.removeprefix("next_"): x for k, x in found.items() if "next_" in k}

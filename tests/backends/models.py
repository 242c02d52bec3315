"""Models, their inputs and what they give, for check_files.py: `models.py write|read FOLDER`.

`write` makes each model with the backend of KERAS_BACKEND, trains it a little, saves it and what it
gives; `read` loads each and compares.
"""

import sys
from pathlib import Path

import keras
import numpy as np
from keras import ops

import keras_attention as ka

LETTERS = ["abcde"]
SOURCE = np.array([[4, 5, 6, 7, 2], [8, 6, 2, 0, 0], [5, 2, 0, 0, 0]], "int32")
TARGET = np.array([[1, 5, 4], [1, 8, 8], [1, 7, 0]], "int32")
PADDED = np.array([[0, 0, 5], [4, 6, 3]], "int32")


def letters():
    return ka.CharacterTokenizer.fit(LETTERS)


def layers():
    """A Functional model with each of the attention layers."""
    query, value = keras.Input((None, 8), name="query"), keras.Input((None, 8), name="value")
    made = [
        ka.BahdanauAttention(6, normalize=True),
        ka.LuongAttention("general"),
        ka.LuongAttention("concat", units=5, local="predictive", window=2),
        ka.ScaledDotProductAttention(normalizer="entmax15"),
        ka.MultiHeadAttention(2, 4, position="rotary"),
        ka.MultiHeadAttention(2, 4, num_key_value_heads=1, position="relative", sliding_window=3),
    ]
    outputs = [layer(query, value) for layer in made]
    return keras.Model([query, value], outputs)


MODELS = {
    "layers": layers,
    "seq2seq": lambda: ka.seq2seq(letters(), letters(), units=8),
    "seq2seq_luong": lambda: ka.seq2seq(9, 9, units=8, attention="general"),
    "transformer": lambda: ka.transformer(letters(), letters(), layers=1, units=8, num_heads=2),
    "language_model": lambda: ka.causal_lm(9, layers=1, units=8, num_heads=2, position="alibi"),
    "classifier": lambda: ka.text_classifier(9, 3, layers=1, units=8, num_heads=2),
}


def inputs_of(name):
    if name == "layers":
        rng = np.random.default_rng(3)
        return [rng.normal(size=(2, n, 8)).astype("float32") for n in (4, 6)]
    if name in ("language_model", "classifier"):
        return PADDED
    return [SOURCE, TARGET]


def results_of(name, model):
    """Arrays: what the model computes, and what its search finds."""
    outputs = keras.tree.flatten(model(inputs_of(name), training=False))
    results = {f"output_{i}": ops.convert_to_numpy(x) for i, x in enumerate(outputs)}
    if hasattr(model, "search"):
        ids = PADDED if name == "language_model" else SOURCE
        for width in (1, 3):
            found = model.search(ids, max_length=5, beam_width=width)
            results[f"ids_{width}"] = ops.convert_to_numpy(found.ids)
            results[f"scores_{width}"] = ops.convert_to_numpy(found.scores)
    return results


def compile_and_fit(name, model):
    if hasattr(model, "search") and name != "language_model":
        model.compile(keras.optimizers.Adam(0.05), ka.MaskedCrossEntropy())
        fit(model, epochs=3)


def fit(model, epochs):
    labels = np.concatenate([TARGET[:, 1:], np.full((3, 1), 2)], 1).astype("int32")
    model.fit([SOURCE, TARGET], labels, epochs=epochs, verbose=0)


def write(folder):
    for name, make in MODELS.items():
        keras.utils.set_random_seed(7)
        model = make()
        compile_and_fit(name, model)
        model.save(folder / f"{name}.keras")
        np.savez(folder / f"{name}.npz", **results_of(name, model))


def read(folder):
    for file in sorted(folder.glob("*.keras")):
        model, expected = keras.saving.load_model(file), np.load(file.with_suffix(".npz"))
        for key, found in results_of(file.stem, model).items():
            message = f"{file.stem}, {key}"
            if key.startswith("ids"):
                np.testing.assert_array_equal(found, expected[key], message)
            else:
                np.testing.assert_allclose(
                    found, expected[key], rtol=1e-4, atol=1e-5, err_msg=message
                )
        if model.compiled:  # and goes on, whatever class the optimizer had
            fit(model, epochs=1)
        print(f"{file.stem}: equal")


def export(folder):
    """Exports models that were trained here, and asks the SavedModels the same."""
    for name in ("seq2seq", "transformer", "language_model"):
        keras.utils.set_random_seed(7)
        model = MODELS[name]()
        compile_and_fit(name, model)
        card = ka.export_servable(model, folder / name, max_length=5, overwrite=True)
        source = card["compared_with_model"]["source"]
        assert source["backend"] == keras.backend.backend()
        np.savez(folder / f"{name}.npz", **results_of(name, model))
        print(f"{name}: largest difference {source['largest_difference']:.1e}")


if __name__ == "__main__":
    what, folder = sys.argv[1], Path(sys.argv[2])
    {"write": write, "read": read, "export": export}[what](folder)

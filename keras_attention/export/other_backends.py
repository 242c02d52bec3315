"""SavedModels of models whose Keras runs on JAX or PyTorch: written on TensorFlow, compared here.

Vocabularies and loops of a servable are TensorFlow's. So the model goes into a `.keras` file, which
another process with KERAS_BACKEND=tensorflow reads and exports.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import keras
import numpy as np

from keras_attention.export.servable import CARD

# With the file, the folder, and the file of options as arguments.
SCRIPT = """
import json, sys
import keras, keras_attention
model = keras.saving.load_model(sys.argv[1], compile=False)
with open(sys.argv[3], encoding="utf-8") as file:
    keras_attention.export_servable(model, sys.argv[2], **json.load(file))
"""


def export_elsewhere(model, folder, options):
    """Exports a model in a process of its own, where Keras runs on TensorFlow.

    Args:
        model: a `Seq2Seq`, `Transformer` or `CausalLM`, of ids `[B, S]`.
        folder: where the SavedModel is to be written.
        options: dictionary of other arguments of `export_servable`.

    Returns:
        The model card.

    Raises:
        ValueError: if an option is nothing that JSON can hold.
        RuntimeError: if the export fails, or gives something else than the model gives here.
    """
    try:
        options = json.dumps(options, default=_plain)
    except TypeError as error:
        raise ValueError(
            f"On {keras.backend.backend()} the options of an export go to another process: {error}."
        ) from None
    with tempfile.TemporaryDirectory() as scratch:
        file, listed = Path(scratch, "model.keras"), Path(scratch, "options.json")
        model.save(file, include_optimizer=False)
        listed.write_text(options, "utf-8")
        _run(file, folder, listed)
    card = json.loads((Path(folder) / CARD).read_text("utf-8"))
    _compare(model, folder, card)
    (Path(folder) / CARD).write_text(json.dumps(card, indent=1, ensure_ascii=False), "utf-8")
    return card


def _run(*paths):
    root = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *map(str, paths)],
        env={**os.environ, "KERAS_BACKEND": "tensorflow", "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise RuntimeError(
            "The export on TensorFlow failed: "
            + (done.stderr.strip() or f"exit status {done.returncode}").rpartition("\n")[2]
        )


def _compare(model, folder, card):
    """What the SavedModel computes and finds for some ids must be what the model does here."""
    import tensorflow as tf

    from keras_attention.export.comparison import distance
    from keras_attention.export.other_formats import example_inputs
    from keras_attention.models.language_model import CausalLM

    loaded = tf.saved_model.load(str(folder))
    continues, largest = isinstance(model, CausalLM), 0.0
    longest = card["search"]["max_input_length"] or 6
    for inputs in example_inputs(model, "forward", None):
        inputs = [x[:, :longest] for x in inputs]
        names = ["ids"] if continues else ["source", "target"]
        given = {name: tf.constant(x) for name, x in zip(names, inputs, strict=True)}
        found = np.asarray(loaded.signatures["forward"](**given)["logits"])
        expected = model(inputs[0] if continues else inputs, training=False)
        gap = distance(found, np.asarray(keras.ops.convert_to_numpy(expected)))
        if not gap <= (1e-3 if model.compute_dtype in ("float32", "float64") else 0.1):
            raise RuntimeError(
                "The exported endpoint `forward` does not give what the model gives on "
                f"{keras.backend.backend()} for {[x.tolist() for x in inputs]}: they differ by "
                f"{gap:.2g}."
            )
        largest = max(largest, gap)
    card["compared_with_model"]["source"] = {
        "backend": keras.backend.backend(),
        "largest_difference": largest,
    }


def _plain(value):
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is nothing that JSON can hold")

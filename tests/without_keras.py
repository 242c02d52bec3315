"""Asks a servable in a process in which neither Keras nor keras_attention can be imported.

    python without_keras.py FOLDER SERVABLE_PY TEXTS < requests

Requests and answers as of c_api.py; the last answer is what the copied front
end gives for the texts, a list as JSON.
"""

import importlib.util
import json
import os
import sys

import numpy as np

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")


def plain(array):
    values = np.ravel(array).tolist()
    if array.dtype == object:
        return {
            "dtype": "string",
            "shape": list(array.shape),
            "values": [x.decode("utf-8") for x in values],
        }
    return {"dtype": array.dtype.name, "shape": list(array.shape), "values": values}


def main():
    folder, module, texts = sys.argv[1:]
    for name in ("keras", "tf_keras", "keras_attention"):
        sys.modules[name] = None  # it can not be imported
    import tensorflow as tf

    loaded, answers = tf.saved_model.load(folder), []
    for endpoint, given, earlier in json.load(sys.stdin):
        given = given if earlier is None else {**answers[earlier], **given}
        tensors = {
            name: tf.reshape(tf.constant(x["values"], x["dtype"]), x["shape"])
            for name, x in given.items()
        }
        try:
            found = loaded.signatures[endpoint](**tensors)
            answers.append({name: plain(x.numpy()) for name, x in found.items()})
        except (TypeError, tf.errors.OpError) as error:
            answers.append({"error": str(error)})
    spec = importlib.util.spec_from_file_location("servable", module)
    servable = importlib.util.module_from_spec(spec)
    sys.modules["servable"] = servable  # (its NamedTuple looks for it)
    spec.loader.exec_module(servable)
    front = servable.load_servable(folder)
    texts = json.loads(texts)
    if "translation" in front.model.signatures["serving_default"].structured_outputs:
        answers.append([front.translate(texts), front.translate_beam(texts)])
    else:
        answers.append([front.generate(texts), front.generate_beam(texts)])
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()

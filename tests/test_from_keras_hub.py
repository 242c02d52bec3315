"""Against KerasHub's transformer layers, from files that they made (see tests/data)."""

import json
from pathlib import Path

import keras
import numpy as np
import pytest
from backend import to_numpy

from keras_attention.migrate.from_keras_hub import block_from_keras_hub

DATA = Path(__file__).parent / "data"
LIMIT = 1e-5


def load(name):
    """The layer as class and config, its weights by path, and inputs and outputs."""
    with np.load(DATA / f"keras_hub_{name}.npz") as file:
        arrays = dict(file)
    layer = json.loads(str(arrays.pop("layer")))
    paths = [name for name in arrays if name.startswith("weights/")]
    return layer, {path.removeprefix("weights/"): arrays.pop(path) for path in paths}, arrays


def close(actual, expected, where=Ellipsis):
    np.testing.assert_allclose(to_numpy(actual)[where], expected[where], rtol=LIMIT, atol=LIMIT)


def real(lengths, size):
    return np.arange(size) < lengths[:, None]


@pytest.mark.parametrize("name", ["encoder", "encoder_pre_norm", "encoder_odd_heads"])
def test_encoder(name):
    layer, weights, arrays = load(name)
    block = block_from_keras_hub(layer, weights)
    x, mask = arrays["x"], real(arrays["lengths"], arrays["x"].shape[1])
    close(block(x, mask=mask), arrays["output"], mask)
    close(block(x, attention_mask=arrays["attention_mask"]), arrays["output_mask"])
    assert block.name == "encoder"


@pytest.mark.parametrize("name", ["decoder", "decoder_pre_norm", "decoder_alone"])
def test_decoder(name):
    layer, weights, arrays = load(name)
    block = block_from_keras_hub(layer, weights)
    x, mask = arrays["x"], real(arrays["lengths"], arrays["x"].shape[1])
    inputs, masks = [x], {"mask": mask}
    if "memory" in arrays:
        inputs.append(arrays["memory"])
        masks["memory_mask"] = real(arrays["memory_lengths"], arrays["memory"].shape[1])
    close(block(*inputs, **masks), arrays["output"], mask)


class TransformerEncoder(keras.layers.Layer):
    """What `block_from_keras_hub` sees of KerasHub's layer: its class name, config and weights."""

    def __init__(self, config, weights):
        super().__init__(name=config["name"])
        self.config, self.paths = config, weights

    def get_config(self):
        return self.config

    @property
    def weights(self):
        return [Weight(path, array) for path, array in self.paths.items()]


class Weight:
    def __init__(self, path, array):
        self.path, self.array = path, array

    def __array__(self, dtype=None, copy=None):
        return self.array


def test_a_layer_itself():
    layer, weights, arrays = load("encoder")
    built = TransformerEncoder(layer["config"], {f"model/{n}": x for n, x in weights.items()})
    with pytest.raises(ValueError, match="`weights` must be given .* not been built yet"):
        block_from_keras_hub(built)
    built.built = True
    mask = real(arrays["lengths"], arrays["x"].shape[1])
    close(block_from_keras_hub(built)(arrays["x"], mask=mask), arrays["output"], mask)


def test_dropout_and_other_settings_are_kept():
    layer, weights, _ = load("encoder")
    config = {**layer["config"], "dropout": 0.25, "trainable": False}
    block = block_from_keras_hub({**layer, "config": config}, weights)
    assert (block.dropout, block.attention_dropout, block.trainable) == (0.25, 0.25, False)


def test_what_does_not_fit():
    layer, weights, _ = load("decoder")

    def refused(message, weights=weights, layer=layer, **config):
        with pytest.raises(ValueError, match=message):
            block_from_keras_hub({**layer, "config": {**layer["config"], **config}}, weights)

    name = "decoder/cross_attention/value/kernel"
    refused(
        r"no 'cross_attention/value/kernel', an array of shape \(13, 5, 2\)",
        {path: x for path, x in weights.items() if path != name},
    )
    refused(
        r"'feedforward_output_dense/bias' .* \(10\). Received shape \(3\)",
        {**weights, "decoder/feedforward_output_dense/bias": np.ones(3)},
    )
    refused(
        r"more than the layer takes: 'self_attention/gate/kernel' \(2\)",
        {**weights, "decoder/self_attention/gate/kernel": np.ones(2)},
    )
    refused(r"`weights` must be a dictionary .* list", [1.0])
    refused("`activation` must be one of", activation="tanh")
    refused("`kernel_regularizer` has no counterpart", kernel_regularizer={"class_name": "L2"})
    refused("must be a TransformerEncoder or .* 'Dense'", layer={**layer, "class_name": "Dense"})
    with pytest.raises(ValueError, match="whose config has `intermediate_dim`"):
        block_from_keras_hub({"class_name": "TransformerEncoder", "config": {}}, weights)
    with pytest.raises(ValueError, match="must be a TransformerEncoder or TransformerDecoder of"):
        block_from_keras_hub(keras.layers.Dense(3))

"""Transformer layers for tests: built, with random weights, and those weights for the reference."""

import numpy as np
from conftest import rounded


def randomise(layer, seed=5, scale=0.4):
    """Gives all weights random values, so that no bias is 0 and no gain 1."""
    rng = np.random.default_rng(seed)
    for variable in layer.trainable_variables:
        centre = 1.0 if variable.name in ("gamma", "scale") else 0.0
        variable.assign(centre + scale * rng.normal(size=variable.shape))
    return layer


def exact(layer, variable):
    """The values that the layer computes with, in float64."""
    return rounded(variable, layer.compute_dtype)[1]


def attention_weights(layer):
    names = {
        "query": layer.query_dense,
        "key": layer.key_dense,
        "value": layer.value_dense,
        "output": layer.output_dense,
    }
    kernels = {name: exact(layer, dense.kernel) for name, dense in names.items()}
    if layer.query_dense.bias is None:
        return {"kernels": kernels, "biases": None}
    return {
        "kernels": kernels,
        "biases": {name: exact(layer, dense.bias) for name, dense in names.items()},
    }


def norm_weights(layer, epsilon):
    if hasattr(layer, "gamma"):
        return {
            "gamma": exact(layer, layer.gamma),
            "beta": exact(layer, layer.beta),
            "epsilon": epsilon,
        }
    return {"gamma": exact(layer, layer.scale), "epsilon": epsilon}


def feed_forward_weights(layer):
    """Pairs of kernel and bias, by name, from the layer's variables."""
    parts = {}
    for variable in layer.trainable_variables:
        part, kind = variable.path.split("/")[-2:]
        parts.setdefault(part, {})[kind] = exact(layer, variable)
    return {name: (pair["kernel"], pair.get("bias")) for name, pair in parts.items()}


def block_weights(block):
    """The weights of a block as `reference_transformer.block` takes them."""
    weights = {
        "self": attention_weights(block.self_attention),
        "feed_forward": feed_forward_weights(block.feed_forward),
        "self_norm": norm_weights(block.self_attention_residual.norm, block.epsilon),
        "feed_forward_norm": norm_weights(block.feed_forward_residual.norm, block.epsilon),
    }
    if "cross" in block.attentions:
        weights["cross"] = attention_weights(block.cross_attention)
        weights["cross_norm"] = norm_weights(block.cross_attention_residual.norm, block.epsilon)
    return weights

"""Transformer layers for tests: built, with random weights, and those weights for the reference."""

import contextlib

import keras
import numpy as np
from conftest import rounded


def randomise(layer, seed=5, scale=0.4):
    """Gives all weights random values, so that no bias is 0 and no gain 1."""
    rng = np.random.default_rng(seed)
    for variable in layer.trainable_variables:
        centre = 1.0 if variable.name in ("gamma", "scale") else 0.0
        variable.assign(centre + scale * rng.normal(size=variable.shape))
    return layer


def unmoved(model, before):
    """Paths of weights that are as `before`, by path; but for biases of keys without positions,
    which add the same to all scores of a query."""
    same = [w.path for w in model.trainable_weights if np.array_equal(w, before[w.path])]
    return [path for path in same if not path.endswith("key/bias")]


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


# Whole models


@contextlib.contextmanager
def policy(name):
    """Builds models of that dtype policy: in float64 a choice does not hang on rounding."""
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(name)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


def named(model, name):
    """The layer of that name, or None."""
    layers = {layer.name: layer for layer in model.layers}
    return layers.get(name)


def stack_weights(layers):
    """Weights of blocks, with the relative bias of their self-attentions where they have one."""
    stack = []
    for layer in layers:
        weights, position = block_weights(layer), layer.self_attention.position
        if hasattr(position, "weight"):
            weights["self"]["relative"] = exact(layer, position.weight)
        stack.append(weights)
    return stack


def model_weights(model):
    """Weights of a whole model as `reference_models` takes them."""
    weights = {}
    for side, name in (("source", "source_embedding"), ("target", "target_embedding")):
        layer = named(model, name) or named(model, "embedding")
        weights[side] = exact(layer, layer.embeddings)
    blocks = [layer for layer in model.layers if layer.name.startswith("encoder_")]
    blocks = [layer for layer in blocks if hasattr(layer, "self_attention")]
    norm, decoder = named(model, "encoder_norm"), named(model, "decoder")
    weights |= {"encoder": stack_weights(blocks), "encoder_norm": norm and norm_weights(norm, 1e-5)}
    if hasattr(named(model, "encoder_positions"), "weight"):
        layer = named(model, "encoder_positions")
        weights["encoder_positions"] = exact(layer, layer.weight)
    if decoder is not None:
        weights["decoder"] = stack_weights(decoder.blocks)
        weights["decoder_norm"] = decoder.norm and norm_weights(decoder.norm, 1e-5)
        if hasattr(decoder.position_embedding, "weight"):
            layer = decoder.position_embedding
            weights["decoder_positions"] = exact(layer, layer.weight)
    output = named(model, "logits")
    if output is None:
        weights["logits"] = (weights["target"][: model.output_shape[-1]].T, None)
    else:
        weights["logits"] = (exact(output, output.kernel), exact(output, output.bias))
    return weights

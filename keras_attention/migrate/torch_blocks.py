"""Layers with the weights of PyTorch's modules: kernels turned round, heads on an axis."""

import re

import numpy as np

from keras_attention.migrate.weights import check_divides


def stack_layers(weights):
    """The `Weights` of the layers of a stack, "layers.0.", "layers.1.", ..., arrays `[...]`."""
    numbers = {re.match(r"layers\.(\d+)\.", name) for name in weights.names()} - {None}
    numbers = {int(match[1]) for match in numbers}
    return [weights.part(f"layers.{i}.") for i in range(max(numbers, default=0) + 1)]


def block_with(kind, weights, num_heads, **options):
    """A built block of that class, `[B, T, D]` to `[B, T, D]`, with a layer's weights."""
    own, size = weights.part("self_attn."), features(weights.part("self_attn."), num_heads)
    hidden = weights.shape("linear1.weight", 2)[0]
    block = kind(num_heads, hidden, use_bias="in_proj_bias" in own, **options)
    shape = (None, None, size)
    block.build(shape, *[shape] * ("cross" in block.attentions))
    fill_block(block, weights)
    return block


def fill_block(block, weights):
    """Gives a built block of features `[..., D]` the weights of a layer of PyTorch."""
    residuals = [block.self_attention_residual]
    fill_attention(block.self_attention, weights.part("self_attn."))
    if "cross" in block.attentions:
        fill_attention(block.cross_attention, weights.part("multihead_attn."))
        residuals.append(block.cross_attention_residual)
    size = block.self_attention.query_dense.kernel.shape[0]
    _fill_feed_forward(block.feed_forward, weights, size, block.feed_forward.size)
    for number, residual in enumerate([*residuals, block.feed_forward_residual], 1):
        fill_norm(residual.norm, weights.part(f"norm{number}."))


def features(weights, num_heads):
    """D of an attention `[B, T, D]`, which the heads must divide."""
    size = weights.shape("out_proj.weight", 2)[0]
    check_divides(num_heads, size, "out_proj.weight")
    return size


def fill_attention(layer, weights):
    """Gives a built `MultiHeadAttention` the weights of `torch.nn.MultiheadAttention`."""
    size, heads, _ = layer.query_dense.kernel.shape
    denses = (layer.query_dense, layer.key_dense, layer.value_dense)
    if "in_proj_weight" in weights:
        kernels = np.split(weights.take("in_proj_weight", (3 * size, size)), 3)
    else:
        kernels = [
            weights.take(f"{side}_proj_weight", (size, dense.kernel.shape[0]))
            for side, dense in zip("qkv", denses, strict=True)
        ]
    for dense, kernel in zip(denses, kernels, strict=True):
        dense.kernel.assign(kernel.T.reshape(kernel.shape[1], heads, -1))
    output = weights.take("out_proj.weight", (size, size)).T
    layer.output_dense.kernel.assign(output.reshape(heads, -1, size))
    if layer.output_dense.bias is not None:
        biases = np.split(weights.take("in_proj_bias", (3 * size,)), 3)
        for dense, bias in zip(denses, biases, strict=True):
            dense.bias.assign(bias.reshape(heads, -1))
        layer.output_dense.bias.assign(weights.take("out_proj.bias", (size,)))


def _fill_feed_forward(layer, weights, size, hidden):
    arrays = {"linear1": (hidden, size), "linear2": (size, hidden)}
    values = []
    for name, shape in arrays.items():
        values.append(weights.take(f"{name}.weight", shape).T)
        if layer.use_bias:
            values.append(weights.take(f"{name}.bias", shape[:1]))
    layer.set_weights(values)


def fill_norm(norm, weights):
    """Gives a normalisation of `[..., D]` gain and shift."""
    size = norm.gamma.shape[0]
    norm.gamma.assign(weights.take("weight", (size,)))
    if "bias" in weights:  # with `bias=False` there is none, and beta stays 0
        norm.beta.assign(weights.take("bias", (size,)))

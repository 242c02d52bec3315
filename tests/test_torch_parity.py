"""Against PyTorch's attention and transformer modules, from files that they made (see tests/data),
and against Keras's own multi-head and grouped-query attention."""

from pathlib import Path

import keras
import numpy as np
import pytest
from backend import to_numpy

from keras_attention.decoders.transformer import TransformerDecoder
from keras_attention.layers.multi_head import MultiHeadAttention
from keras_attention.layers.transformer import TransformerDecoderBlock, TransformerEncoderBlock

DATA = Path(__file__).parent / "data"
N, F = 5, 11
LIMIT = 1e-5  # the sums of two float32 implementations, for numbers around 1


class Weights:
    """Weights of a file of PyTorch under one prefix, in the shapes of Keras."""

    def __init__(self, arrays, prefix="weights/"):
        self.arrays, self.prefix = arrays, prefix

    def part(self, name):
        return Weights(self.arrays, f"{self.prefix}{name}.")

    def get(self, name):
        return self.arrays.get(self.prefix + name)

    def dense(self, name):
        """Kernel `[in, out]` and bias."""
        return [self.get(f"{name}.weight").T, self.get(f"{name}.bias")]

    def norm(self, name):
        return [self.get(f"{name}.weight"), self.get(f"{name}.bias")]

    def attention(self):
        """Kernels and biases in the order query, key, value, output, the heads on an axis."""
        together = self.get("in_proj_weight")
        if together is None:
            kernels = [self.get(f"{name}_proj_weight") for name in "qkv"]
        else:
            kernels = np.split(together, 3)
        bias, arrays = self.get("in_proj_bias"), []
        for kernel, some in zip(
            kernels, [None] * 3 if bias is None else np.split(bias, 3), strict=True
        ):
            arrays.append(kernel.T.reshape(kernel.shape[1], N, -1))
            arrays += [] if some is None else [some.reshape(N, -1)]
        output = self.get("out_proj.weight").T
        arrays.append(output.reshape(N, -1, output.shape[-1]))
        return arrays + ([] if bias is None else [self.get("out_proj.bias")])


def load(name):
    with np.load(DATA / f"torch_{name}.npz") as file:
        return dict(file)


def close(actual, expected, where=Ellipsis):
    np.testing.assert_allclose(to_numpy(actual)[where], expected[where], rtol=LIMIT, atol=LIMIT)


def real(lengths, size):
    """`[B, size]`, True = a real step."""
    return np.arange(size) < lengths[:, None]


# PyTorch: attention


def carried_attention(arrays, inputs):
    weights = Weights(arrays)
    size = weights.get("out_proj.weight").shape[0]
    layer = MultiHeadAttention(N, size // N, use_bias=weights.get("in_proj_bias") is not None)
    layer.build(*(x.shape for x in inputs))
    layer.set_weights(weights.attention())
    return layer


@pytest.mark.parametrize("name", ["self", "self_no_bias", "cross", "cross_sizes"])
def test_multi_head_attention(name):
    """Context and weights: plain, with padding, a mask for each head, a bias, a causal mask."""
    arrays = load(f"attention_{name}")
    query = arrays["query"]
    inputs = [query, arrays.get("value", query), arrays.get("key", query)]
    layer = carried_attention(arrays, inputs)
    steps = inputs[-1].shape[1]
    masks = {
        "plain": {},
        "padding": {"value_mask": real(arrays["lengths"], steps)},
        "mask": {"attention_mask": ~arrays["forbidden"]},
        "bias": {"attention_bias": np.tile(arrays["additive"], (len(query), 1, 1))},
        "causal": {"use_causal_mask": True},
    }
    cases = [case for case in masks if f"output/{case}" in arrays]
    assert len(cases) == (5 if name.startswith("self") else 4)
    for case in cases:
        options = masks[case]
        output, weights = layer(*inputs, return_attention_scores=True, **options)
        close(output, arrays[f"output/{case}"])
        close(weights, arrays[f"attention/{case}"])
        close(layer(*inputs, **options), arrays[f"output/{case}"])


# PyTorch: blocks


def carry_block(block, weights, norms):
    """Gives a block the weights of a layer of PyTorch."""
    block.self_attention.set_weights(weights.part("self_attn").attention())
    if "cross" in block.attentions:
        block.cross_attention.set_weights(weights.part("multihead_attn").attention())
    block.feed_forward.set_weights([*weights.dense("linear1"), *weights.dense("linear2")])
    for number, residual in enumerate(norms, 1):
        residual.norm.set_weights(weights.norm(f"norm{number}"))


def encoder_block(weights, size, norm_first, activation):
    block = TransformerEncoderBlock(
        N, F, norm_first=norm_first, activation=activation, name="encoder"
    )
    block.build((None, None, size))
    carry_block(block, weights, [block.self_attention_residual, block.feed_forward_residual])
    return block


def decoder_block(weights, size, norm_first, activation):
    block = TransformerDecoderBlock(N, F, norm_first=norm_first, activation=activation)
    block.build((None, None, size), (None, None, size))
    residuals = [block.self_attention_residual, block.cross_attention_residual]
    carry_block(block, weights, [*residuals, block.feed_forward_residual])
    return block


KINDS = {"": (False, "relu"), "_pre_norm": (True, "gelu")}


@pytest.mark.parametrize("kind", KINDS)
def test_encoder_layer(kind):
    arrays = load(f"encoder_layer{kind}")
    x = arrays["x"]
    block = encoder_block(Weights(arrays), x.shape[-1], *KINDS[kind])
    mask = real(arrays["lengths"], x.shape[1])
    close(block(x, mask=mask), arrays["output"], mask)
    close(block(x, use_causal_mask=True), arrays["output_causal"])


@pytest.mark.parametrize("kind", KINDS)
def test_decoder_layer(kind):
    arrays = load(f"decoder_layer{kind}")
    x, memory = arrays["x"], arrays["memory"]
    block = decoder_block(Weights(arrays), x.shape[-1], *KINDS[kind])
    mask = real(arrays["lengths"], x.shape[1])
    memory_mask = real(arrays["memory_lengths"], memory.shape[1])
    close(block(x, memory, mask=mask, memory_mask=memory_mask), arrays["output"], mask)


@pytest.mark.parametrize("kind, norm_first", [("", False), ("_pre_norm", True)])
def test_transformer(kind, norm_first):
    """Two blocks a side. nn.Transformer normalises behind both stacks, also of post-norm blocks."""
    arrays = load(f"transformer{kind}")
    weights, activation = Weights(arrays), "relu" if norm_first else "gelu"
    memory, target = arrays["source"], arrays["target"]
    mask, size = real(arrays["lengths"], target.shape[1]), target.shape[-1]
    memory_mask = real(arrays["source_lengths"], memory.shape[1])
    norms = [keras.layers.LayerNormalization(epsilon=1e-5) for _ in range(2)]
    for norm, name in zip(norms, ("encoder", "decoder"), strict=True):
        norm.build((None, None, size))
        norm.set_weights(weights.part(name).norm("norm"))
    for i in range(2):
        of_block = weights.part(f"encoder.layers.{i}")
        memory = encoder_block(of_block, size, norm_first, activation)(memory, mask=memory_mask)
    memory = norms[0](memory)
    decoder = TransformerDecoder(
        [
            decoder_block(weights.part(f"decoder.layers.{i}"), size, norm_first, activation)
            for i in range(2)
        ]
    )
    decoder.build(target.shape, memory.shape)
    if norm_first:
        decoder.norm.set_weights(norms[1].get_weights())
    out = decoder(target, memory, mask=mask, memory_mask=memory_mask)
    out = out if norm_first else norms[1](out)
    close(out, arrays["output"], mask)
    # And step by step.
    projected = decoder.precompute(memory, memory_mask)
    state = decoder.start_state(projected, max_length=target.shape[1])
    for t in range(target.shape[1]):
        step, state = decoder.step(target[:, t], state, projected)
        step = step if norm_first else norms[1](step)
        close(step, arrays["output"][:, t], mask[:, t])


# Keras


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("use_bias", [True, False])
def test_grouped_query_attention_of_keras(rng, groups, use_bias):
    ours = MultiHeadAttention(4, 3, num_key_value_heads=groups, use_bias=use_bias)
    theirs = keras.layers.GroupQueryAttention(
        head_dim=3, num_query_heads=4, num_key_value_heads=groups, use_bias=use_bias
    )
    query, memory = rng.normal(size=(2, 5, 8)), rng.normal(size=(2, 7, 6))
    mask = rng.random((2, 5, 7)) < 0.6
    mask[..., 0] = True
    for layer in (ours, theirs):
        layer.build(query.shape, memory.shape)
    ours.set_weights([0.5 * rng.normal(size=w.shape) for w in ours.weights])
    theirs.set_weights(ours.get_weights())
    for options in ({}, {"attention_mask": mask}):
        output, weights = ours(query, memory, return_attention_scores=True, **options)
        expected, their_weights = theirs(query, memory, return_attention_scores=True, **options)
        close(output, to_numpy(expected))
        close(weights, to_numpy(their_weights))


def test_multi_head_attention_of_keras_with_masks(rng):
    """Where each query may attend to something; see test_multi_head.py for more."""
    ours, theirs = MultiHeadAttention(2, 3), keras.layers.MultiHeadAttention(2, 3)
    x = rng.normal(size=(2, 5, 8)).astype("float32")
    mask = real(np.array([5, 3]), 5)
    for layer in (ours, theirs):
        layer.build(x.shape, x.shape, x.shape)
    ours.set_weights([0.5 * rng.normal(size=w.shape) for w in ours.weights])
    theirs.set_weights(ours.get_weights())
    expected = theirs(x, x, value_mask=mask, use_causal_mask=True)
    close(ours(x, x, value_mask=mask, use_causal_mask=True), to_numpy(expected))

"""Against PyTorch's attention and transformer modules, from files that they made (see tests/data),
and against Keras's own multi-head and grouped-query attention."""

from pathlib import Path

import keras
import numpy as np
import pytest
from backend import assert_allclose, to_numpy

from keras_attention.layers.multi_head import MultiHeadAttention
from keras_attention.migrate.from_torch import (
    attention_from_torch,
    decoder_block_from_torch,
    decoder_from_torch,
    encoder_block_from_torch,
    encoder_from_torch,
    transformer_from_torch,
)
from keras_attention.migrate.torch_model import load_transformer_from_torch
from keras_attention.models.transformer import transformer

DATA = Path(__file__).parent / "data"
N = 5
LIMIT = 1e-5  # the sums of two float32 implementations, for numbers around 1


def load(name):
    with np.load(DATA / f"torch_{name}.npz") as file:
        return dict(file)


def close(actual, expected, where=Ellipsis):
    assert_allclose(to_numpy(actual)[where], expected[where], rtol=LIMIT, atol=LIMIT)


def real(lengths, size):
    """`[B, size]`, True = a real step."""
    return np.arange(size) < lengths[:, None]


# PyTorch: attention


@pytest.mark.parametrize("name", ["self", "self_no_bias", "cross", "cross_sizes"])
def test_multi_head_attention(name):
    """Context and weights: plain, with padding, a mask for each head, a bias, a causal mask."""
    arrays = load(f"attention_{name}")
    query = arrays["query"]
    inputs = [query, arrays.get("value", query), arrays.get("key", query)]
    layer = attention_from_torch(arrays, N, prefix="weights/")
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


# Settings of the modules that the files are of.
KINDS = {
    "": {"norm_first": False, "activation": "relu"},
    "_pre_norm": {"norm_first": True, "activation": "gelu"},
}
STACKS = {
    "": {"norm_first": False, "activation": "gelu"},
    "_pre_norm": {"norm_first": True, "activation": "relu"},
}


@pytest.mark.parametrize("kind", KINDS)
def test_encoder_layer(kind):
    arrays = load(f"encoder_layer{kind}")
    x = arrays["x"]
    block = encoder_block_from_torch(arrays, N, **KINDS[kind], prefix="weights/")
    mask = real(arrays["lengths"], x.shape[1])
    close(block(x, mask=mask), arrays["output"], mask)
    close(block(x, use_causal_mask=True), arrays["output_causal"])


@pytest.mark.parametrize("kind", KINDS)
def test_decoder_layer(kind):
    arrays = load(f"decoder_layer{kind}")
    x, memory = arrays["x"], arrays["memory"]
    block = decoder_block_from_torch(arrays, N, **KINDS[kind], prefix="weights/")
    mask = real(arrays["lengths"], x.shape[1])
    memory_mask = real(arrays["memory_lengths"], memory.shape[1])
    close(block(x, memory, mask=mask, memory_mask=memory_mask), arrays["output"], mask)


@pytest.mark.parametrize("kind", STACKS)
def test_transformer(kind):
    """Two blocks a side. nn.Transformer normalises behind both stacks, also of post-norm blocks."""
    arrays = load(f"transformer{kind}")
    source, target = arrays["source"], arrays["target"]
    mask = real(arrays["lengths"], target.shape[1])
    memory_mask = real(arrays["source_lengths"], source.shape[1])
    encoder, decoder = transformer_from_torch(arrays, N, **STACKS[kind], prefix="weights/")
    memory = encoder(source, mask=memory_mask)
    out = decoder(target, memory, mask=mask, memory_mask=memory_mask)
    close(out, arrays["output"], mask)
    # And step by step.
    projected = decoder.precompute(memory, memory_mask)
    state = decoder.start_state(projected, max_length=target.shape[1])
    for t in range(target.shape[1]):
        step, state = decoder.step(target[:, t], state, projected)
        close(step, arrays["output"][:, t], mask[:, t])


@pytest.mark.slow
@pytest.mark.parametrize("kind", STACKS)
def test_each_stack_alone(kind, tmp_path):
    """The mask of the encoder's output travels, and both are saved and loaded."""
    arrays, options = load(f"transformer{kind}"), {"num_heads": N, **STACKS[kind]}
    encoder = encoder_from_torch(arrays, **options, prefix="weights/encoder.")
    decoder = decoder_from_torch(arrays, **options, prefix="weights/decoder.")
    source = keras.Input((None, encoder.input_shape[-1]))
    target = keras.Input((None, encoder.input_shape[-1]))
    masked = [keras.layers.Masking(mask_value=9.0)(x) for x in (source, target)]
    model = keras.Model([source, target], decoder(masked[1], encoder(masked[0])))
    model.save(tmp_path / "model.keras")
    inputs = []
    for side, lengths in (("source", "source_lengths"), ("target", "lengths")):
        mask = real(arrays[lengths], arrays[side].shape[1])
        inputs.append(np.where(mask[..., None], arrays[side], 9.0).astype("float32"))
    for one in (model, keras.models.load_model(tmp_path / "model.keras")):
        close(one(inputs), arrays["output"], mask)


# A whole model

NAMES = {
    "prefix": "transformer.",
    "source_embedding": "source_embedding.weight",
    "target_embedding": "target_embedding.weight",
    "logits": "generator",
}


def model_like(**changed):
    """The model of torch_translator.npz, with other weights."""
    sizes = {"layers": 2, "decoder_layers": 1, "units": 10, "num_heads": N, "feedforward_size": 11}
    return transformer(13, 17, **{**sizes, "tied_embeddings": False, **changed})


def test_whole_model():
    arrays = load("translator")
    model = load_transformer_from_torch(model_like(), weights_of("translator"), **NAMES)
    logits = model([arrays["source"], arrays["target"]])
    close(logits, arrays["logits"], arrays["target"] != 0)
    # Embeddings and logits are left alone where they are not named.
    other = model_like()
    before = other.get_layer("logits").get_weights()[0]
    load_transformer_from_torch(other, weights_of("translator"), "transformer.")
    np.testing.assert_array_equal(other.get_layer("logits").get_weights()[0], before)
    np.testing.assert_array_equal(
        other.get_layer("encoder_2").get_weights()[0], model.get_layer("encoder_2").get_weights()[0]
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"layers": 1}, "has 2 layers of the encoder, `model` has 1 blocks"),
        ({"feedforward_size": 7}, r"'transformer.encoder.layers.0.linear1.weight' .* \(7, 10\)"),
        ({"num_heads": 2, "units": 6}, r"'transformer.encoder.*in_proj_weight' .* \(18, 6\)"),
        ({"norm_first": False}, "'transformer.encoder.norm.weight' .* normalises behind both"),
        ({"position": "rotary"}, "made with `position` 'sinusoidal' or .* Received: 'rotary'"),
        ({"activation": "swiglu"}, "made with `activation` 'relu' or .* Received: 'swiglu'"),
        ({"normalization": "rms"}, "made with `normalization` 'layer'"),
        ({"attention_options": {"num_key_value_heads": 1}}, "made with `attention_options` None"),
        ({"tied_embeddings": True}, "no layer 'logits' .* `tied_embeddings=True`"),
    ],
)
def test_a_model_that_does_not_fit(changed, message):
    with pytest.raises(ValueError, match=message):
        load_transformer_from_torch(model_like(**changed), weights_of("translator"), **NAMES)


def test_names_of_a_whole_model_that_do_not_fit():
    weights, model = weights_of("translator"), model_like()

    def refused(message, model=model, weights=weights, **changed):
        with pytest.raises(ValueError, match=message):
            load_transformer_from_torch(model, weights, **{**NAMES, **changed})

    refused("no name that begins with 'model.'", prefix="model.")
    refused(r"no 'embed.weight', an array of shape \(13, 10\)", source_embedding="embed.weight")
    narrow = {**weights, "generator.weight": np.ones((16, 10))}
    refused(r"'generator.weight' .* \(17, 10\). Received shape \(16, 10\)", weights=narrow)
    refused("no 'out.weight'", logits="out")
    more = {**weights, "transformer.extra": np.ones(3)}
    refused(r"more than the layer takes: 'transformer.extra' \(3\)", weights=more)
    refused("`model` must be what `transformer", keras.Sequential())


# What does not fit


def without(arrays, *names):
    return {name: array for name, array in arrays.items() if name not in names}


def weights_of(name):
    arrays = load(name)
    return {n.removeprefix("weights/"): x for n, x in arrays.items() if n.startswith("weights/")}


def test_a_missing_array_is_named():
    weights = without(weights_of("attention_self"), "out_proj.bias")
    with pytest.raises(ValueError, match=r"no 'out_proj.bias', an array of shape \(10\)"):
        attention_from_torch(weights, N)
    weights = without(weights_of("transformer"), "decoder.layers.1.multihead_attn.in_proj_bias")
    with pytest.raises(ValueError, match="no 'decoder.layers.1.multihead_attn.in_proj_bias'"):
        transformer_from_torch(weights, N)
    weights = without(weights_of("transformer"), "encoder.layers.0.norm2.weight")
    with pytest.raises(ValueError, match="no 'encoder.layers.0.norm2.weight'"):
        transformer_from_torch(weights, N)


def test_an_array_of_another_shape_is_named():
    weights = weights_of("attention_self") | {"in_proj_weight": np.ones((20, 10))}
    message = r"'in_proj_weight' in `weights` must have shape \(30, 10\). Received shape \(20, 10\)"
    with pytest.raises(ValueError, match=message):
        attention_from_torch(weights, N)
    weights = weights_of("encoder_layer") | {"linear2.bias": np.ones(11)}
    with pytest.raises(ValueError, match=r"'linear2.bias' .* \(10\). Received shape \(11\)"):
        encoder_block_from_torch(weights, N)


def test_an_array_too_many_is_named():
    weights = weights_of("attention_self") | {"bias_k": np.ones((1, 1, 10))}
    with pytest.raises(ValueError, match=r"more than the layer takes: 'bias_k' \(1, 1, 10\)"):
        attention_from_torch(weights, N)
    with pytest.raises(ValueError, match="'multihead_attn.in_proj_weight'"):
        encoder_block_from_torch(weights_of("decoder_layer"), N)


def test_heads_and_prefix_that_do_not_fit():
    weights = weights_of("attention_self")
    with pytest.raises(ValueError, match="`num_heads` must divide the 10 features.* 3"):
        attention_from_torch(weights, 3)
    with pytest.raises(ValueError, match="`num_heads` must be a positive integer"):
        attention_from_torch(weights, 0)
    with pytest.raises(ValueError, match="no name that begins with 'attn.'.*'in_proj_bias'"):
        attention_from_torch(weights, N, prefix="attn.")
    with pytest.raises(ValueError, match="must be a dictionary from names to arrays.*list"):
        attention_from_torch(list(weights.values()), N)
    with pytest.raises(ValueError, match="'in_proj_bias' must be an array of numbers"):
        attention_from_torch(weights | {"in_proj_bias": "zeros"}, N)


def test_tensors_of_pytorch_are_taken():
    """What has `detach` is asked for its numbers, bfloat16 among them."""

    class Tensor:
        def __init__(self, array):
            self.array = array

        def detach(self):
            return self

        cpu = float = detach

        def __array__(self, dtype=None, copy=None):
            return self.array

    weights = weights_of("attention_self")
    layer = attention_from_torch({name: Tensor(x) for name, x in weights.items()}, N)
    for ours, expected in zip(layer.weights, attention_from_torch(weights, N).weights, strict=True):
        np.testing.assert_array_equal(ours, expected)


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

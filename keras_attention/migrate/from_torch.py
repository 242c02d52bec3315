"""torch.nn: MultiheadAttention, the layers of the transformer, their stacks, and Transformer.

Kernels are transposed there, `[out, in]`, and the projections of query, key and value are one array
`in_proj_weight` `[3 D, D]` unless keys or values have another size. A state_dict does not tell the
number of heads, the activation, where the blocks normalise, and epsilon: these are arguments here,
with the defaults of PyTorch.
"""

from typing import NamedTuple

import keras

from keras_attention.decoders.transformer import TransformerDecoder
from keras_attention.layers.multi_head import MultiHeadAttention
from keras_attention.layers.residual import normalization_layer
from keras_attention.layers.transformer import TransformerDecoderBlock, TransformerEncoderBlock
from keras_attention.migrate.torch_blocks import (
    block_with,
    features,
    fill_attention,
    fill_norm,
    stack_layers,
)
from keras_attention.migrate.weights import Weights


class TransformerPair(NamedTuple):
    """What `transformer_from_torch` returns."""

    encoder: keras.Model
    decoder: TransformerDecoder


def attention_from_torch(weights, num_heads, prefix="", dropout=0.0, **kwargs):
    """A `MultiHeadAttention` with the weights of `torch.nn.MultiheadAttention`.

    Args:
        weights: the module's `state_dict()`: a dictionary from names to arrays `[...]` or tensors.
        num_heads: N, as of the module.
        prefix: where the module's names begin, e.g. "encoder.layers.0.self_attn.".
        dropout: the fraction of attention weights dropped in training.
        **kwargs: further arguments of `keras.layers.Layer` (name, dtype, ...).

    Returns:
        A built layer. It is called with `[B, T, D]` (`batch_first`) in the order query, value,
        key; a mask is True where PyTorch's is False.

    Raises:
        ValueError: if an array is missing, is one too many (`bias_k` of `add_bias_kv`), or has
            another shape; the error names it.

    Example:

    >>> import numpy as np
    >>> state = {
    ...     "in_proj_weight": np.ones((24, 8)), "in_proj_bias": np.ones(24),
    ...     "out_proj.weight": np.ones((8, 8)), "out_proj.bias": np.ones(8),
    ... }
    >>> layer = attention_from_torch(state, num_heads=2)
    >>> layer(np.ones((1, 5, 8), "float32")).shape
    TensorShape([1, 5, 8])
    """
    weights = Weights(weights, prefix=prefix)
    size = features(weights, num_heads)
    layer = MultiHeadAttention(
        num_heads,
        size // num_heads,
        dropout=dropout,
        use_bias="in_proj_bias" in weights,
        **kwargs,
    )
    key_size, value_size = size, size
    if "in_proj_weight" not in weights:
        key_size, value_size = (weights.shape(f"{side}_proj_weight", 2)[1] for side in "kv")
    layer.build((None, None, size), (None, None, value_size), (None, None, key_size))
    fill_attention(layer, weights)
    weights.check_all_taken()
    return layer


def encoder_block_from_torch(
    weights,
    num_heads,
    norm_first=False,
    activation="relu",
    epsilon=1e-5,
    dropout=0.1,
    prefix="",
    **kwargs,
):
    """A `TransformerEncoderBlock` with the weights of `torch.nn.TransformerEncoderLayer`.

    Args:
        weights: the module's `state_dict()`, a dictionary from names to arrays `[...]`.
        num_heads: N, `nhead` of the module.
        norm_first, activation, dropout: as of the module, with its defaults.
        epsilon: its `layer_norm_eps`.
        prefix: where the module's names begin, e.g. "encoder.layers.0.".
        **kwargs: further arguments of `keras.layers.Layer` (name, dtype, ...).

    Returns:
        A built block.

    Raises:
        ValueError: if an array is missing, is one too many, or has another shape; the error names
            it.

    Example:

    >>> from numpy import ones
    >>> state = {
    ...     "self_attn.in_proj_weight": ones((24, 8)), "self_attn.in_proj_bias": ones(24),
    ...     "self_attn.out_proj.weight": ones((8, 8)), "self_attn.out_proj.bias": ones(8),
    ...     "linear1.weight": ones((16, 8)), "linear1.bias": ones(16),
    ...     "linear2.weight": ones((8, 16)), "linear2.bias": ones(8),
    ...     "norm1.weight": ones(8), "norm1.bias": ones(8),
    ...     "norm2.weight": ones(8), "norm2.bias": ones(8),
    ... }
    >>> encoder_block_from_torch(state, num_heads=2)(ones((1, 5, 8), "float32")).shape
    TensorShape([1, 5, 8])
    """
    weights = Weights(weights, prefix=prefix)
    options = _options(norm_first, activation, epsilon, dropout)
    block = block_with(TransformerEncoderBlock, weights, num_heads, **options, **kwargs)
    weights.check_all_taken()
    return block


def decoder_block_from_torch(
    weights,
    num_heads,
    norm_first=False,
    activation="relu",
    epsilon=1e-5,
    dropout=0.1,
    prefix="",
    **kwargs,
):
    """A `TransformerDecoderBlock` with the weights of `torch.nn.TransformerDecoderLayer`.

    Args:
        weights: the module's `state_dict()`, a dictionary from names to arrays `[...]`.
        num_heads, norm_first, activation, epsilon, dropout, prefix, **kwargs: as of
            `encoder_block_from_torch`.

    Returns:
        A built block. It is causal unless told otherwise, as PyTorch's is with a `tgt_mask`.

    Raises:
        ValueError: as `encoder_block_from_torch`.

    Example: as of `encoder_block_from_torch`, with `multihead_attn` and a third norm.
    """
    weights = Weights(weights, prefix=prefix)
    options = _options(norm_first, activation, epsilon, dropout)
    block = block_with(TransformerDecoderBlock, weights, num_heads, **options, **kwargs)
    weights.check_all_taken()
    return block


def encoder_from_torch(
    weights,
    num_heads,
    norm_first=False,
    activation="relu",
    epsilon=1e-5,
    dropout=0.1,
    prefix="",
    name="encoder",
):
    """A model with the weights of `torch.nn.TransformerEncoder`.

    Args:
        weights: the module's `state_dict()`, a dictionary from names to arrays `[...]`.
        num_heads, norm_first, activation, epsilon, dropout, prefix: as of
            `encoder_block_from_torch`.
        name: the model's name.

    Returns:
        A Functional model from `[B, S, D]` to `[B, S, D]`: the blocks, and the normalisation
        behind them if the module has one. It reads the Keras mask of its input, or is called
        with `mask` `[B, S]`, True = a real step.

    Raises:
        ValueError: as `encoder_block_from_torch`.

    Example: docs/migration.md.
    """
    weights = Weights(weights, prefix=prefix)
    options = _options(norm_first, activation, epsilon, dropout)
    encoder = _encoder(weights, num_heads, name, options)
    weights.check_all_taken()
    return encoder


def decoder_from_torch(
    weights,
    num_heads,
    norm_first=False,
    activation="relu",
    epsilon=1e-5,
    dropout=0.1,
    prefix="",
    name="decoder",
):
    """A `TransformerDecoder` with the weights of `torch.nn.TransformerDecoder`.

    Args:
        weights: the module's `state_dict()`, a dictionary from names to arrays `[...]`.
        num_heads, norm_first, activation, epsilon, dropout, prefix: as of
            `encoder_block_from_torch`.
        name: the layer's name.

    Returns:
        A built layer, called with `(inputs [B, T, D], memory [B, S, D])`, or step by step.

    Raises:
        ValueError: as `encoder_block_from_torch`.

    Example: docs/migration.md.
    """
    weights = Weights(weights, prefix=prefix)
    options = _options(norm_first, activation, epsilon, dropout)
    decoder = _decoder(weights, num_heads, name, options)
    weights.check_all_taken()
    return decoder


def transformer_from_torch(
    weights, num_heads, norm_first=False, activation="relu", epsilon=1e-5, dropout=0.1, prefix=""
):
    """Encoder and decoder with the weights of `torch.nn.Transformer`.

    That module has no embeddings and no logits: they, and what adds positions, are yours to put
    around.

    Args:
        weights: the module's `state_dict()`, a dictionary from names to arrays `[...]`.
        num_heads, norm_first, activation, epsilon, dropout, prefix: as of
            `encoder_block_from_torch`.

    Returns:
        A pair: `encoder`, as `encoder_from_torch` makes it, and `decoder`, as
        `decoder_from_torch` does. `decoder(target [B, T, D], encoder(source [B, S, D]))` is
        what the module computes with a causal `tgt_mask`.

    Raises:
        ValueError: as `encoder_block_from_torch`.

    Example: docs/migration.md.
    """
    weights = Weights(weights, prefix=prefix)
    options = _options(norm_first, activation, epsilon, dropout)
    encoder = _encoder(weights.part("encoder."), num_heads, "encoder", options)
    decoder = _decoder(weights.part("decoder."), num_heads, "decoder", options)
    weights.check_all_taken()
    return TransformerPair(encoder, decoder)


def _options(norm_first, activation, epsilon, dropout):
    """Arguments of a block; PyTorch drops attention weights with the same fraction."""
    return {
        "norm_first": norm_first,
        "activation": activation,
        "epsilon": epsilon,
        "dropout": dropout,
        "attention_dropout": dropout,
    }


def _encoder(weights, num_heads, name, options):
    parts = stack_layers(weights)
    blocks = [
        block_with(TransformerEncoderBlock, part, num_heads, **options, name=f"{name}_{number}")
        for number, part in enumerate(parts, 1)
    ]
    size = features(parts[0].part("self_attn."), num_heads)
    inputs = keras.Input((None, size), name=f"{name}_inputs")
    x = inputs
    for block in blocks:
        x = block(x)
    if "norm.weight" in weights:
        norm = normalization_layer("layer", options["epsilon"], name=f"{name}_norm")
        x = norm(x)
        fill_norm(norm, weights.part("norm."))
    encoder = keras.Model(inputs, x, name=name)
    encoder.supports_masking = True  # its blocks do; Keras would warn that the mask is lost
    return encoder


def _decoder(weights, num_heads, name, options):
    parts = stack_layers(weights)
    blocks = [
        block_with(TransformerDecoderBlock, part, num_heads, **options, name=f"{name}_{number}")
        for number, part in enumerate(parts, 1)
    ]
    decoder = TransformerDecoder(blocks, final_norm="norm.weight" in weights, name=name)
    size = features(parts[0].part("self_attn."), num_heads)
    decoder.build((None, None, size), (None, None, size))
    if decoder.norm is not None:
        fill_norm(decoder.norm, weights.part("norm."))
    return decoder

"""Fine-tuning of few weights: low-rank additions to the projections of attention layers."""

import math
from numbers import Real

import keras
from keras import ops

from keras_attention.checks import check_positive
from keras_attention.layers.base import AttentionLayer


def enable_lora(model, rank, lora_alpha=None):
    """Leaves nothing of a model trainable but a product of low rank beside each projection of its
    attention layers.

        x W + (lora_alpha / rank) x A B,  A [D, rank], B [rank, U]; B is 0 at first

    Section 4 of [Hu et al., 2021](https://arxiv.org/abs/2106.09685), which adapts the projections
    of attention too. Keras trains the products, and merges them where weights are saved: a file
    holds W with them in it, and is loaded as an ordinary model. (A model that goes on from such
    weights begins with new products of 0, so an interrupted training goes on from where it was but
    not with the same numbers. A model made of `get_config` has no products either: it takes the
    weights from a file, not from `get_weights`. And what is quantised is rounded anew.)

    Args:
        model: a built Keras model that contains attention layers of this package, at any depth.
            (The scores "dot" and "scaled_dot" have no projections.)
        rank: a positive integer.
        lora_alpha: a number, the factor of the product times `rank`; by default `rank`. A larger
            one lets the same learning rate change more.

    Returns:
        A list of the layers that were changed: `keras.layers.Dense` and `keras.layers.EinsumDense`,
        with weights `[D, rank]` and `[rank, U]` (those of heads `[D, N, rank]` and so on). Compile
        the model after the call. What it computes stays the same until it is trained.

    Raises:
        ValueError: if `model` has no projection of an attention layer, or some that have such
            products already, `rank` is no positive integer or `lora_alpha` no positive number.

    Example:

    >>> import numpy as np
    >>> from keras_attention import causal_lm
    >>> model = causal_lm(20, layers=1, units=8, num_heads=2)
    >>> changed = enable_lora(model, rank=2)
    >>> [layer.name for layer in changed]
    ['query', 'key', 'value', 'attention_output']
    >>> len(model.trainable_weights)
    8
    """
    check_positive("rank", rank)
    if lora_alpha is not None and not _is_positive(lora_alpha):
        raise ValueError(f"`lora_alpha` must be a positive number. Received: {lora_alpha!r}.")
    layers = _projections(model)
    if not layers:
        raise ValueError(
            "`model` must contain built attention layers of keras_attention with projections, such "
            "as `MultiHeadAttention`, `BahdanauAttention` and `LuongAttention('general')`. Found "
            f"none in {getattr(model, 'name', model)!r}."
        )
    taken = [layer.path for layer in layers if layer.lora_enabled]
    if taken:
        raise ValueError(f"`model` has such products already: {', '.join(taken)}.")
    model.trainable = True  # in a frozen layer no product would be trained
    for variable in model.trainable_variables:
        variable.trainable = False
    for layer in layers:
        layer.enable_lora(rank, lora_alpha=lora_alpha)
    searches = getattr(model, "_searches", None)
    if searches is not None:
        searches.forget()
    return layers


def renew_products(model):
    """Draws A `[D, rank]` anew where Keras, in loading weights, has set both A and B to 0: they
    would stay so, as each has the other as factor of its gradient.
    """
    for layer in _projections(model):
        if layer.lora_enabled and not ops.any(ops.not_equal(layer.lora_kernel_a, 0)):
            draw = keras.initializers.HeUniform()  # as Keras draws it at first
            layer.lora_kernel_a.assign(draw(layer.lora_kernel_a.shape))


def _is_positive(x):
    return isinstance(x, Real) and not isinstance(x, bool) and math.isfinite(x) and x > 0


def _projections(model):
    found = {}
    for layer in model._flatten_layers() if isinstance(model, keras.Layer) else ():
        if isinstance(layer, AttentionLayer):
            for inner in layer._flatten_layers(include_self=False):
                if isinstance(inner, (keras.layers.Dense, keras.layers.EinsumDense)):
                    found.setdefault(id(inner), inner)
    return [layer for layer in found.values() if layer.built]

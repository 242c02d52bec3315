"""The masks of one call of an attention layer, found by asking the layer itself."""

import copy
import inspect

import keras
import numpy as np
from keras import ops

from keras_attention.explain.explanation import MaskExplanation
from keras_attention.layers.base import AttentionLayer
from keras_attention.normalizers import Softmax

TENSORS = ("query", "value", "key")
# So hot that all scores that are not masked weigh the same: what has weight 0 is masked.
HOT = 1e30


def explain_call(layer, args, kwargs, lost=(), name=None):
    """Explains the masks of a call `layer(*args, **kwargs)`.

    Args:
        layer: an `AttentionLayer`.
        args, kwargs: of the call; query `[B, T, Dq]`, value `[B, S, Dv]`, ...
        lost: sentences on masks that were lost before.
        name: of the explanation; by default that of the layer.

    Returns:
        A `MaskExplanation` with a mask `[B, T, S]`, with heads `[B, N, T, S]`.

    Raises:
        ValueError: if the arguments do not fit the layer, or it attends over several axes.
    """
    given = bind(layer, args, kwargs)
    return explain_arguments(layer, given, implicit_masks(given), lost, name)


def explain_arguments(layer, given, implicit, lost=(), name=None):
    """As `explain_call`, of arguments by name and the masks that their tensors carried.

    Args:
        layer: an `AttentionLayer`.
        given: the arguments by name.
        implicit: masks `[B, T]`, `[B, S]` that the query, value and key carried, by name.
        lost: sentences on masks that were lost before.
        name: of the explanation; by default that of the layer.

    Returns:
        A `MaskExplanation`.

    Raises:
        ValueError: if the arguments do not fit the layer, or it attends over several axes.
    """
    _check_axes(layer)
    name = layer.name if name is None else name
    masks = arriving_masks(given, implicit)
    tensors = [x for x in given.values() if ops.is_tensor(x)]
    if not all(_has_values(x) for x in [*tensors, *implicit.values()]):
        return MaskExplanation(None, dict.fromkeys(masks), tuple(lost), name)
    own = sorted(own_masks(layer, given))
    plain = {
        argument: _without_mask(x)
        for argument, x in given.items()
        if argument not in (*MASKS, "return_attention_scores", "training", "mask")
    }
    hot = copy.deepcopy(layer)
    hot.normalizer = Softmax(temperature=HOT)
    if plain.get("alignment") is not None:
        plain["alignment"] = {k: plain["alignment"][k] for k in hot._carries()} or None
    bare = _may_attend(hot, plain)
    parts = {label: _may_attend(hot, {**plain, **mask}) | ~bare for label, mask in masks.items()}
    if own:
        parts[" + ".join(own)] = bare
    merged = bare
    if masks:
        every = {argument: x for mask in masks.values() for argument, x in mask.items()}
        merged = _may_attend(hot, {**plain, **every})
    return MaskExplanation(merged, parts, tuple(lost), name)


MASKS = (
    "query_mask",
    "value_mask",
    "key_mask",
    "attention_mask",
    "attention_bias",
    "use_causal_mask",
)


def bind(layer, args, kwargs):
    """The arguments of a call by name, without those that are None.

    Args:
        layer: the layer.
        args, kwargs: of the call.

    Returns:
        A dictionary.

    Raises:
        ValueError: if they do not fit `layer.call`.
    """
    try:
        bound = inspect.signature(layer.call).bind(*args, **kwargs)
    except TypeError as error:
        raise ValueError(f"Layer {layer.name!r} can not be called so: {error}.") from None
    return {name: x for name, x in bound.arguments.items() if x is not None}


def implicit_masks(given):
    """The masks that query, value and key carry, as Keras masks travel from layer to layer.

    Args:
        given: the arguments of a call by name.

    Returns:
        A dictionary from "query", "value", "key" to masks `[B, T]` or `[B, S]`; those there are.
    """
    carried = {name: getattr(given.get(name), "_keras_mask", None) for name in TENSORS}
    return {name: mask for name, mask in carried.items() if mask is not None}


def arriving_masks(given, implicit):
    """What each mask of a call is called, and the argument that it is.

    An explicit mask replaces the one that the tensor carries.

    Args:
        given: the arguments of a call by name.
        implicit: what `implicit_masks` found.

    Returns:
        A dictionary from the label to `{argument: mask}`.
    """
    found = {}
    for tensor in TENSORS:
        argument = f"{tensor}_mask"
        explicit = given.get(argument, given.get("mask") if tensor == "query" else None)
        if explicit is not None:
            found[argument] = {argument: explicit}
        elif tensor in implicit and not (tensor == "key" and given["key"] is given.get("value")):
            found[f"mask of {tensor}"] = {argument: implicit[tensor]}
    for argument in ("attention_mask", "attention_bias", "use_causal_mask"):
        value = given.get(argument)
        if value is not None and value is not False:
            found[argument] = {argument: value}
    return found


def own_masks(layer, given):
    """Names of what a layer hides on its own: `[T, S]` by place, or what a memory remembers.

    Args:
        layer: an `AttentionLayer`.
        given: the arguments of a call by name.

    Returns:
        A set of names.
    """
    config = layer.get_config()
    settings = ("sliding_window", "mask_function", "local", "max_memory", "score_modifier")
    kept = {name for name in ("memory", "cache") if given.get(name) is not None}
    return kept | {name for name in settings if config.get(name) is not None}


def _may_attend(hot, given):
    """Booleans `[B, T, S]`: where a layer without taste puts weight."""
    results = hot(**given, return_attention_scores=True)
    weights = np.asarray(ops.convert_to_numpy(results[1])) != 0
    return weights[..., None, :] if len(given["query"].shape) == 2 else weights


def _without_mask(x):
    """A tensor with the same values that carries no mask; anything else as it is."""
    if not ops.is_tensor(x):
        return x
    return keras.ops.convert_to_tensor(ops.convert_to_numpy(x))


def _has_values(x):
    try:
        ops.convert_to_numpy(x)
    except Exception:  # each backend says in its own way that there are none yet
        return False
    return True


def _check_axes(layer):
    if not isinstance(layer, AttentionLayer):
        raise ValueError(f"`layer` must be an attention layer of this package. Received: {layer}.")
    axes = layer.get_config().get("attention_axes")
    if axes is not None and len(axes) > 1:
        raise ValueError(
            f"Layer {layer.name!r} attends over the axes {tuple(axes)}: masks are explained of "
            "attention over one axis."
        )

"""The one function to ask: of masks, of a call of an attention layer, of a whole model."""

import sys
from collections.abc import Mapping

import keras
import numpy as np
from keras import ops

from keras_attention.explain.explanation import MaskExplanation
from keras_attention.explain.layer_masks import explain_call
from keras_attention.explain.lost import explain_calls
from keras_attention.layers.base import AttentionLayer
from keras_attention.masks import align_to_rank, as_mask, combine_masks

HERE = object()  # stands for the standard output of the moment


def explain_mask(source, *args, file=HERE, **kwargs):
    """Prints and returns which mask blocks what, and where a mask was lost on the way.

        may_attend[..., t, s] = mask_1[..., t, s] and mask_2[..., t, s] and ...

    The commonest silent fault of attention is a mask that does not arrive: padding is attended to,
    and nothing says so.

    - Of masks, it tells what each of them blocks, what it alone blocks, and which queries are left
      without a key.
    - Of an attention layer and the arguments of a call, the same, with the masks that the tensors
      carry, those of the layer itself (`sliding_window`, `mask_function`, a local window) and an
      `attention_bias` of -inf as parts of their own. The layer is asked, not imitated.
    - Of a model, another layer or a function and its inputs: it is called, and each attention
      layer in it is explained, at any depth. Where query, value or key arrives without a mask
      that there was before, it says what lost it: a plain `+`, a `tf.function`, a layer without
      support for masks, a layer that takes it off its input.

    Args:
        source: a dictionary from names to masks (`[T, S]`, `[B, T, S]`, `[B, N, T, S]`, True = may
            attend, or None), or one mask; an attention layer of this package; or a model, a layer
            or a function.
        *args: what the layer, model or function is called with.
        file: where to print; None prints nothing. By default the standard output.
        **kwargs: further arguments of the call, such as `use_causal_mask=True`.

    Returns:
        A `MaskExplanation`, whose `mask` is the merged mask, `[B, T, S]`, with heads
        `[B, N, T, S]`. Of a model or function a dictionary of them by the names of its attention
        layers; the further calls of one layer are "name_1", "name_2", ...

    Masking:
        A query of one step `[B, D]` counts as T = 1.

    Raises:
        ValueError: if masks are floating or do not fit each other, if there are arguments with a
            mask, or if no attention layer was called.

    Example:

    >>> from keras_attention import causal_mask, padding_mask
    >>> merged = explain_mask({"causal": causal_mask(3), "padding": padding_mask([3, 0])})
    mask: 6 of 18 pairs may attend, [2, 3, 3]
      mask       blocks     alone
      causal          6         3
      padding         9         6
      sample 0: . may attend; blocked by a causal, b padding; # several
        0 .aa
        1 ..a
        2 ...
      queries that may attend to nothing (output 0): 3 of 6
        padding: sample 1, query 0; sample 1, query 1; sample 1, query 2
    """
    if isinstance(source, AttentionLayer):
        result = explain_call(source, args, kwargs)
    elif isinstance(source, keras.Model) and not args and not kwargs:
        raise ValueError(
            "`explain_mask` of a model needs inputs, explain_mask(model, inputs). Received none."
        )
    elif callable(source):
        result = explain_calls(source, args, kwargs)
    elif args or kwargs:
        raise ValueError(
            "With masks there are no further arguments; several masks are a dictionary from names "
            f"to masks. Received: {len(args)} arguments and {sorted(kwargs)}."
        )
    else:
        result = explain_masks(source if isinstance(source, Mapping) else {"mask": source})
    if file is not None:
        file = sys.stdout if file is HERE else file
        found = result.values() if isinstance(result, dict) else [result]
        print(*found, sep="\n", file=file)
    return result


def explain_masks(named):
    """Explains masks that are given by name, `[T, S]` and more axes in front.

    Args:
        named: a dictionary from names to masks; None stands for no mask.

    Returns:
        A `MaskExplanation`.

    Raises:
        ValueError: if there is no mask, one is floating, or they do not fit each other.
    """
    masks = {name: as_mask(mask, name) for name, mask in named.items() if mask is not None}
    if not masks:
        raise ValueError(f"`source` must hold a mask at least. Received: {dict(named)}.")
    try:
        merged = np.asarray(ops.convert_to_numpy(combine_masks(*masks.values())))
    except ValueError as error:
        shapes = ", ".join(f"{name} {tuple(mask.shape)}" for name, mask in masks.items())
        raise ValueError(f"{error} The masks are: {shapes}.") from error
    parts = {
        name: np.broadcast_to(
            ops.convert_to_numpy(align_to_rank(mask, merged.ndim, name)), merged.shape
        )
        for name, mask in masks.items()
    }
    return MaskExplanation(merged, parts)

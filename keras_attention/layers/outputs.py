"""Layers that can be called with and without attention weights in one Functional model."""

import collections

import keras


class VaryingOutputs:
    """Lets calls of one layer differ in their number of outputs.

    A Functional model takes the number of outputs of all calls of a layer from `layer.output`,
    that is from the first call. A layer that was called for the context alone could then not be
    called again for `(context, weights)` ("not connected to `inputs`"). Here `output` is that of
    the call with the most outputs, e.g. the context `[B, T, Dv]` and the weights `[B, T, S]`.
    """

    @property
    def output(self):
        nodes = getattr(self, "_inbound_nodes", ())
        if len(nodes) < 2:
            return super().output
        most = max(nodes, key=lambda node: len(node.output_tensors))
        tensors = most.output_tensors
        return tensors[0] if len(tensors) == 1 else tensors


def attention_scores_model(model):
    """A model that shows the attention weights inside a trained Functional model.

    It shares all layers with `model`, so that it follows further training.

    Args:
        model: a Functional model with attention layers or decoders of this package.

    Returns:
        A model with the same inputs that returns a dictionary: the name of each attention layer
        and decoder, and its attention weights (`[B, T, S]`, with heads `[B, N, T, S]`). A layer
        called more than once has an entry for each call: "name", "name_1", ...

    Raises:
        ValueError: if the model is not Functional, has no such layer, or has one inside of a
            nested model or a wrapper.

    Example:

    >>> import numpy as np
    >>> from keras_attention import LuongAttention
    >>> query, memory = keras.Input((3, 4)), keras.Input((5, 4))
    >>> context = LuongAttention("dot", name="cross")(query, memory)
    >>> model = keras.Model([query, memory], keras.layers.Dense(1)(context))
    >>> scores = attention_scores_model(model)([np.ones((2, 3, 4)), np.ones((2, 5, 4))])
    >>> scores["cross"].shape
    TensorShape([2, 3, 5])
    """
    if isinstance(model, keras.Sequential) or not hasattr(model, "operations"):
        raise ValueError(f"`model` must be a Functional model. Received: {model!r}.")
    for layer in model.layers:
        inner = [getattr(layer, "layer", None), *getattr(layer, "layers", ())]
        hidden = [x.name for x in inner if isinstance(x, VaryingOutputs)]
        if hidden and not isinstance(layer, VaryingOutputs):
            raise ValueError(
                f"{', '.join(hidden)}: inside of layer {layer.name!r}, where its weights can not "
                "be reached. Take the inner model itself, or build with attention at the top."
            )
    scores, calls = {}, collections.Counter()

    def call(layer, *args, **kwargs):
        if not isinstance(layer, VaryingOutputs):
            return layer(*args, **kwargs)
        results = layer(*args, **{**kwargs, "return_attention_scores": True})
        name = f"{layer.name}_{calls[layer.name]}" if calls[layer.name] else layer.name
        calls[layer.name] += 1
        scores[name] = results[1]
        if kwargs.get("return_attention_scores"):
            return results
        kept = (results[0], *results[2:])
        return kept[0] if len(kept) == 1 else kept

    copy = keras.models.clone_model(model, clone_function=lambda layer: layer, call_function=call)
    if not scores:
        raise ValueError(
            f"Model {model.name!r} has no attention layer or decoder of keras_attention. "
            f"Its layers: {', '.join(layer.name for layer in model.layers)}."
        )
    return keras.Model(copy.inputs, scores)

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

    # Names of the attention weights that a call returns behind its output; of one, none is needed.
    attentions = ("",)

    def split_scores(self, results):
        """Takes the attention weights out of what a call with `return_attention_scores` returned.

        Args:
            results: the output `[B, T, D]`, the weights of each attention (or one dictionary of
                them), and what else there may be.

        Returns:
            A dictionary from names to weights, and the other results as a tuple.
        """
        if isinstance(results[1], dict):
            return results[1], (results[0], *results[2:])
        end = 1 + len(self.attentions)
        weights = dict(zip(self.attentions, results[1:end], strict=True))
        return weights, (results[0], *results[end:])


def attention_scores_model(model):
    """A model that shows the attention weights inside a trained Functional model.

    It shares all layers with `model`, so that it follows further training.

    Args:
        model: a Functional model with attention layers or decoders of this package.

    Returns:
        A model with the same inputs that returns a dictionary: the name of each attention layer
        and decoder, and its attention weights (`[B, T, S]`, with heads `[B, N, T, S]`). A layer
        called more than once has an entry for each call: "name", "name_1", ... A transformer
        block has one for each of its attentions: "name/self", "name/cross".

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
    _, scores = _run_with_scores(model)
    hidden = _hidden_layers(model)
    if hidden:
        raise ValueError(_out_of_reach(hidden))
    if not scores:
        raise ValueError(
            f"Model {model.name!r} has no attention layer or decoder of keras_attention. "
            f"Its layers: {', '.join(layer.name for layer in model.layers)}."
        )
    return keras.Model(model.input, scores)


def attention_model(model, layer_name):
    """A trained Functional model that returns the attention weights of one layer as well.

    It shares all layers with `model`: nothing is trained again, and it follows further training.

    Args:
        model: a Functional model with attention layers or decoders of this package.
        layer_name: name of one of them; for a further call of the same layer "name_1", ...; of an
            attention of a transformer block "name/self" or "name/cross".

    Returns:
        A model with the same inputs that returns `(outputs, weights)`: the outputs of `model` and
        the weights, `[B, T, S]`, with heads `[B, N, T, S]`. If the outputs are a dictionary, it
        returns that dictionary with the weights as a further entry, under `layer_name`.

    Raises:
        ValueError: if the model is not Functional, or no layer with attention weights has that
            name; the error lists those that have.

    Example:

    >>> import numpy as np
    >>> from keras_attention import LuongAttention
    >>> query, memory = keras.Input((3, 4)), keras.Input((5, 4))
    >>> context = LuongAttention("dot", name="cross")(query, memory)
    >>> model = keras.Model([query, memory], keras.layers.Dense(1)(context))
    >>> inputs = [np.ones((2, 3, 4)), np.ones((2, 5, 4))]
    >>> outputs, weights = attention_model(model, "cross")(inputs)
    >>> outputs.shape, weights.shape
    (TensorShape([2, 3, 1]), TensorShape([2, 3, 5]))
    """
    outputs, scores = _run_with_scores(model)
    if layer_name not in scores:
        hidden = _hidden_layers(model)
        raise ValueError(
            f"`layer_name` must name a layer with attention weights: "
            f"{', '.join(map(repr, scores)) or 'this model has none'}. Received: {layer_name!r}."
            + (f" {_out_of_reach(hidden)}" if hidden else "")
        )
    weights = scores[layer_name]
    if not isinstance(outputs, dict):
        return keras.Model(model.input, (outputs, weights))
    if layer_name in outputs:
        raise ValueError(f"`layer_name`: the model has an output of that name, {layer_name!r}.")
    return keras.Model(model.input, {**outputs, layer_name: weights})


def _run_with_scores(model):
    """Outputs of a second run through the graph of a Functional model, and the weights of each
    call of an attention layer by name, as symbolic tensors."""
    if isinstance(model, keras.Sequential) or not hasattr(model, "operations"):
        raise ValueError(f"`model` must be a Functional model. Received: {model!r}.")
    scores, calls = {}, collections.Counter()

    def call(layer, *args, **kwargs):
        if not isinstance(layer, VaryingOutputs):
            return layer(*args, **kwargs)
        results = layer(*args, **{**kwargs, "return_attention_scores": True})
        name = f"{layer.name}_{calls[layer.name]}" if calls[layer.name] else layer.name
        calls[layer.name] += 1
        weights, kept = layer.split_scores(results)
        scores.update({f"{name}/{part}" if part else name: x for part, x in weights.items()})
        if kwargs.get("return_attention_scores"):
            return results
        return kept[0] if len(kept) == 1 else kept

    # Of a subclass of `keras.Model`, and of what it was compiled with, only the graph is wanted.
    graph = keras.Model(model.input, model.output)
    copy = keras.models.clone_model(
        graph, input_tensors=model.input, clone_function=lambda layer: layer, call_function=call
    )
    return copy.output, scores


def _hidden_layers(model):
    """Names of attention layers inside of nested models and wrappers, by the outer layer."""
    hidden = {}
    for layer in model.layers:
        if isinstance(layer, VaryingOutputs):
            continue
        inner = [getattr(layer, "layer", None), *getattr(layer, "layers", ())]
        names = [x.name for x in inner if isinstance(x, VaryingOutputs)]
        if names:
            hidden[layer.name] = names
    return hidden


def _out_of_reach(hidden):
    places = [f"{', '.join(names)}: inside of layer {outer!r}" for outer, names in hidden.items()]
    return (
        f"{'; '.join(places)}, where the weights can not be reached. Take the inner model itself, "
        "or build with attention at the top."
    )

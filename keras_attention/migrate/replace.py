"""A Functional model with this package's attention layers in place of Keras's."""

import tempfile
import warnings

import keras

from keras_attention.checks import check_flag
from keras_attention.migrate.from_keras import KINDS, WITH_HEADS, attention_from_keras, kind_of


def replace_attention(model, strict=True):
    """A copy of a model in which Keras's attention layers are those of this package.

    Each `keras.layers.MultiHeadAttention`, `GroupQueryAttention`, `Attention` and
    `AdditiveAttention` becomes what `attention_from_keras` makes of it, called as it was, with
    its name and its weights; all other layers are copied with their weights (what has neither
    weights nor a config, such as a lambda, is shared). A layer that is called several times stays
    one layer; models inside of the model are copied likewise.

    The new model gives the same numbers, except where Keras's are wrong: masks that it lost are
    heeded (a second attention on one tensor, an explicit `query_mask`), and a step that may attend
    to nothing has output 0.

    Args:
        model: a Functional or Sequential model, from inputs `[B, T, D]` or any others.
        strict: whether an attention layer that can not be replaced is an error. If not, it is kept
            as it is, with a warning.

    Returns:
        A new model. The old one, and its weights, stay as they are. If that is compiled, so is the
        new one, with the same settings and a new optimizer.

    Raises:
        ValueError: if the model is not Functional or Sequential, has no such layer, has a layer
            that its config does not make another one of, or, with `strict`, has one that can not
            be replaced: inside of a layer of another kind, a subclass, quantised, made for flash
            attention, or called with `use_causal_mask` or a sliding window on query and value of
            different lengths. The error lists them with the reason.

    Example:

    >>> import numpy as np
    >>> tokens = keras.Input((None,), dtype="int32")
    >>> x = keras.layers.Embedding(10, 8, mask_zero=True)(tokens)
    >>> x = keras.layers.MultiHeadAttention(2, 4, name="attention")(x, x)
    >>> model = keras.Model(tokens, keras.layers.Dense(3)(x))
    >>> new_model = replace_attention(model)
    >>> type(new_model.get_layer("attention")).__module__
    'keras_attention.layers.multi_head'
    >>> ids = np.array([[1, 2, 3, 0]])
    >>> np.allclose(new_model(ids)[:, :3], model(ids)[:, :3], atol=1e-6)
    True
    """
    check_flag("strict", strict)
    if not _is_graph(model):
        raise ValueError(
            "`model` must be a Functional or a Sequential model; of another one the calls of its "
            f"layers are not known. Received: {model!r}."
        )
    kept = dict(_out_of_reach(model))
    while True:
        copier = _Copier(kept)
        try:
            new_model = copier.copy(model)
            break
        except _CanNotReplace as error:  # once more, with this layer as it is
            kept[id(error.layer)] = error.layer, error.reason
    reasons = [f"{layer.name!r}: {reason}" for layer, reason in kept.values()]
    if reasons and strict:
        raise ValueError(
            f"`model` {model.name!r} has attention layers that can not be replaced. "
            f"{' '.join(reasons)} With `strict=False` they are kept."
        )
    if not copier.replaced:
        raise ValueError(
            f"`model` {model.name!r} has no attention layer to replace ({', '.join(KINDS)} of "
            f"keras.layers). {' '.join(reasons)}".rstrip()
        )
    copier.copy_weights()
    if reasons:
        warnings.warn(
            f"replace_attention kept layers of model {model.name!r} as they are. "
            f"{' '.join(reasons)}",
            stacklevel=2,
        )
    return new_model


def _is_graph(layer):
    """Whether it is a model whose graph of layers, from inputs `[...]` on, is known."""
    if isinstance(layer, keras.Sequential):
        return layer.built
    return isinstance(layer, keras.Model) and hasattr(layer, "operations")


def _is_plain(model):
    """Whether a model, from `[...]` to `[...]`, is of no class of its own."""
    return type(model).__module__.partition(".")[0] == "keras"


def _layers(model):
    """All layers of a model and of the models inside of it, each once."""
    found = {}
    for layer in model.layers:
        if _is_graph(layer):
            found.update({id(inner): inner for inner in _layers(layer)})
        else:
            found[id(layer)] = layer
    return list(found.values())


def _attentions_inside(layer):
    """Names of Keras's attention layers inside of a layer of another kind, `[...]` to `[...]`."""
    inner = layer._flatten_layers(include_self=False)
    return [x.name for x in inner if isinstance(x, tuple(KINDS.values()))]


def _out_of_reach(model):
    """Layers that hide Keras's attention layers, or are a subclass of one, and the reason."""
    for layer in _layers(model):
        if kind_of(layer):
            continue
        inside = _attentions_inside(layer)
        cls = type(layer).__name__
        if isinstance(layer, tuple(KINDS.values())):
            yield id(layer), (layer, f"{cls} is a subclass, which may compute something else.")
        elif inside:
            names = ", ".join(map(repr, inside))
            reason = f"{cls} has {names} inside, where they can not be reached."
            yield id(layer), (layer, reason)


class _CanNotReplace(Exception):
    def __init__(self, layer, reason):
        super().__init__(reason)
        self.layer, self.reason = layer, reason


class _Copier:
    """Copies layers of a model, each once, and calls those that take another's place."""

    def __init__(self, kept):
        self._kept = kept
        self._copies = {}  # id of the old layer: the new one
        self._without_weights = []  # pairs of an old layer and its copy
        self.replaced = {}  # id of the new layer: the old one

    def copy(self, model):
        """A model `[...]` to `[...]` of copies, without weights yet."""
        if isinstance(model, keras.Sequential):
            return keras.models.clone_model(model, clone_function=self._copy_once)
        return keras.models.clone_model(
            model, clone_function=self._copy_once, call_function=self._call
        )

    def copy_weights(self):
        """Gives the copies the weights of the layers that they are copies of."""
        for old, new in self._without_weights:
            if any("lora_kernel" in weight.name for weight in old.weights):
                raise ValueError(
                    f"`model` must be without products of `enable_lora`: layer {old.name!r} has "
                    "some. Save the model, which merges them, and load it."
                )
            new.set_weights(old.get_weights())
            _copy_assets(old, new)
            if not old.trainable:
                new.trainable = True  # What `build` makes is, whatever the config says, and to
                new.trainable = False  # set False again would do nothing.

    def _copy_once(self, layer):
        if id(layer) not in self._copies:
            self._copies[id(layer)] = self._copy(layer)
        return self._copies[id(layer)]

    def _copy(self, layer):
        if _is_graph(layer) and (_is_plain(layer) or any(map(kind_of, _layers(layer)))):
            return self.copy(layer)
        if kind_of(layer) and id(layer) not in self._kept:
            try:
                new = attention_from_keras(layer)
            except ValueError as error:
                raise _CanNotReplace(layer, str(error)) from error
            self.replaced[id(new)] = layer
            return new
        new = _copy_by_config(layer)
        if isinstance(layer, keras.layers.Layer) and new is not layer:
            self._without_weights.append((layer, new))
        return new

    def _call(self, layer, *args, **kwargs):
        old = self.replaced.get(id(layer))
        if old is None:
            return layer(*args, **kwargs)
        try:
            return _call_as_before(layer, kind_of(old), *args, **kwargs)
        except ValueError as error:
            raise _CanNotReplace(old, str(error)) from error


def _copy_by_config(layer):
    """A copy without weights; itself, if it has none and no config, as a function `[...]` has."""
    try:
        return type(layer).from_config(layer.get_config())
    except Exception as error:  # whatever a layer of somebody else raises
        if not getattr(layer, "variables", ()):
            return layer
        raise ValueError(
            f"`model` has a layer that can not be copied, {layer.name!r} ({type(layer).__name__}): "
            f"its config does not make another one. {error}"
        ) from error


def _copy_assets(old, new):
    """Copies what a layer `[...]` keeps besides weights: a vocabulary that it learned."""
    if not hasattr(old, "save_assets"):
        return
    with tempfile.TemporaryDirectory() as folder:
        old.save_assets(folder)
        new.load_assets(folder)


def _call_as_before(layer, kind, *args, **kwargs):
    """Calls our layer as Keras's layer of that kind was: query `[B, T, D]`, value `[B, S, D]`."""
    if kind in WITH_HEADS:
        return _call_with_heads(layer, *args, **kwargs)
    inputs, masks, flags = _of_list(*args, **kwargs)
    _check_places(layer, inputs[0], inputs[1], flags)
    names = ("query_mask", "value_mask")
    given = {name: x for name, x in zip(names, masks, strict=False) if x is not None}
    return layer(*inputs, **given, **flags)


def _of_list(inputs, mask=None, **flags):
    return inputs, mask or (), flags


def _call_with_heads(layer, query, value, *args, attention_mask=None, **flags):
    if len(args) > 4:
        *args, attention_mask = args
    _check_places(layer, query, value, flags)
    if attention_mask is not None:  # where Keras takes any number for true, and fewer axes
        if keras.backend.standardize_dtype(attention_mask.dtype) != "bool":
            attention_mask = keras.ops.cast(attention_mask, "bool")
        if len(attention_mask.shape) == 2:
            attention_mask = keras.ops.expand_dims(attention_mask, 0)
        flags["attention_mask"] = attention_mask
    return layer(query, value, *args, **flags)


def _check_places(layer, query, value, flags):
    """Keras counts steps from the first of either side, this package from the last."""
    causal, window = flags.get("use_causal_mask"), layer.get_config().get("sliding_window")
    steps = query.shape[1], value.shape[1]
    if not (causal or window) or query is value or (None not in steps and steps[0] == steps[1]):
        return
    raise ValueError(
        f"it is called with {'`use_causal_mask`' if causal else '`sliding_window`'} on query and "
        f"value of lengths {steps[0]} and {steps[1]}. Keras lines up their first steps, this "
        "package their last ones: pass `attention_mask` instead."
    )

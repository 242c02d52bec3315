"""Watches the calls inside of a model: which masks arrive at attention, and what lost the others.

Keras carries a mask as an attribute of a tensor. What makes a new tensor without saying so (`+`, a
slice, the boundary of a `tf.function`) loses it, and so does a layer that does not support masks.
"""

import contextlib
import inspect
import threading
from collections import Counter
from typing import Any, NamedTuple

import keras

from keras_attention.explain.explanation import MaskExplanation
from keras_attention.explain.layer_masks import (
    TENSORS,
    arriving_masks,
    bind,
    explain_arguments,
    implicit_masks,
)
from keras_attention.layers.base import AttentionLayer

watching = threading.Lock()  # `Layer.__call__` is there only once


class Birth(NamedTuple):
    """Where a tensor comes from.

    Attributes:
        tensor: `[B, T, ...]`; kept, so that its identity is not given to another one.
        maker: the layer or operation, or None for an input.
        inputs: the tensors that it was made of.
        masked: those of the inputs that carried a mask then.
        has_mask: whether it carried a mask itself.
    """

    tensor: Any
    maker: Any
    inputs: tuple
    masked: tuple
    has_mask: bool


class Call(NamedTuple):
    """A call of an attention layer: its arguments, the masks they carried, and what was lost."""

    layer: Any
    given: dict
    implicit: dict
    lost: tuple


class Watch:
    """Remembers where tensors `[B, T, ...]` come from, and the calls of attention layers.

    Args:
        inputs: the tensors that are there from the beginning.
    """

    def __init__(self, inputs):
        self.births = {}
        self.thieves = {}  # who took the mask off a tensor, by its identity
        self.calls = []
        self.outer = []  # the layers that are being called
        self.first = frozenset(map(id, inputs))  # what was there from the beginning
        self.begin(inputs)

    def begin(self, tensors):
        """Remembers tensors `[B, T, ...]` that nothing made that was watched."""
        for x in tensors:
            self.births.setdefault(id(x), Birth(x, None, (), (), _mask(x) is not None))

    def around(self, original, operation, args, kwargs):
        """Calls an operation and remembers what went in and out."""
        inputs = tuple(_tensors((args, kwargs)))
        masked = tuple(x for x in inputs if _mask(x) is not None)
        self.begin(inputs)
        if _is_attention(operation):
            self._remember_call(operation, args, kwargs)
        self.outer.append(operation)
        try:
            results = original(operation, *args, **kwargs)
        finally:
            self.outer.pop()
        for x in masked:
            if _mask(x) is None:
                self.thieves.setdefault(id(x), operation)
        for x in _tensors(results):
            if id(x) not in self.births:  # an identity hands its input on
                self.births[id(x)] = Birth(x, operation, inputs, masked, _mask(x) is not None)
        return results

    def _remember_call(self, layer, args, kwargs):
        given = bind(layer, args, kwargs)
        implicit = implicit_masks(given)
        arriving = arriving_masks(given, implicit)
        lost = []
        for name in TENSORS:
            x = given.get(name)
            if x is None or {f"{name}_mask", f"mask of {name}"} & set(arriving):
                continue
            reason = self.why_lost(x)
            if reason and (name != "key" or x is not given.get("value")):
                lost.append(f"the mask of `{name}`, {reason}")
        self.calls.append(Call(layer, given, implicit, tuple(lost)))

    def why_lost(self, x):
        """What took the mask from a tensor `[B, T, ...]`, or None if there never was one."""
        if id(x) in self.thieves:
            return f"taken off by an earlier call of {_named(self.thieves[id(x)])}"
        birth = self.births.get(id(x))
        if birth is None or birth.maker is None:
            return self._lost_unseen(x)
        same = [y for y in birth.masked if _same_steps(x, y)]
        if same and not birth.has_mask:
            return f"dropped by {_named(birth.maker)}{_advice(birth.maker)}"
        for y in birth.inputs:
            reason = self.why_lost(y) if _same_steps(x, y) else None
            if reason:
                return reason
        return None

    def _lost_unseen(self, x):
        """Of a tensor that no layer made: whether one of the same shape had a mask before."""
        birth = self.births.get(id(x))
        known = [y for y in self.births.values() if y.has_mask and y.tensor is not x]
        if birth is None or id(x) in self.first:
            return None
        for y in reversed(known):
            if _shape(x) == _shape(y.tensor):
                source = "an input" if y.maker is None else f"the output of {_named(y.maker)}"
                inside = f" inside of {_named(self.outer[-1])}" if self.outer else ""
                return (
                    f"which {source} had: between them lies a plain operation (+, a slice) or the "
                    f"boundary of a `tf.function`{inside}"
                )
        return None


@contextlib.contextmanager
def watch_calls(inputs):
    """Watches all calls of Keras layers and operations while it is open.

    Args:
        inputs: the tensors `[B, ...]` that are there from the beginning.

    Yields:
        A `Watch`.
    """
    watch = Watch(inputs)
    layer_call, operation_call = keras.layers.Layer.__call__, keras.Operation.__call__

    def call_layer(self, *args, **kwargs):
        return watch.around(layer_call, self, args, kwargs)

    def call_operation(self, *args, **kwargs):
        if isinstance(self, keras.layers.Layer):  # seen by `call_layer`
            return operation_call(self, *args, **kwargs)
        return watch.around(operation_call, self, args, kwargs)

    with watching:
        keras.layers.Layer.__call__ = call_layer
        keras.Operation.__call__ = call_operation
        try:
            yield watch
        finally:
            keras.layers.Layer.__call__ = layer_call
            keras.Operation.__call__ = operation_call


def explain_calls(function, args, kwargs):
    """Calls a model or function, and explains each attention layer that was called meanwhile.

    Args:
        function: what to call.
        args, kwargs: with tensors or arrays `[B, ...]`.

    Returns:
        A dictionary of `MaskExplanation` by the names of the layers.

    Raises:
        ValueError: if no attention layer was called.
    """
    args, kwargs = keras.tree.map_structure(_as_tensor, (list(args), dict(kwargs)))
    with watch_calls(tuple(_tensors((args, kwargs)))) as watch:
        function(*args, **kwargs)
    if not watch.calls:
        raise ValueError(
            f"No attention layer was called by {_named(function)}. (A function that TensorFlow "
            "has compiled before runs without its Python code: pass it before its first call.)"
        )
    found, counts = {}, Counter()
    for layer, given, implicit, lost in watch.calls:
        name = f"{layer.name}_{counts[layer.name]}" if counts[layer.name] else layer.name
        counts[layer.name] += 1
        if isinstance(layer, AttentionLayer):
            found[name] = explain_arguments(layer, given, implicit, lost, name)
        else:  # of another library: what it does with its masks only it knows
            masks = dict.fromkeys(arriving_masks(given, implicit))
            found[name] = MaskExplanation(None, masks, lost, f"{name} ({type(layer).__name__})")
    return found


def _mask(x):
    return getattr(x, "_keras_mask", None)


def _tensors(structure):
    return [x for x in keras.tree.flatten(structure) if keras.ops.is_tensor(x)]


def _as_tensor(x):
    return keras.ops.convert_to_tensor(x) if hasattr(x, "__array__") else x


def _is_attention(operation):
    if isinstance(operation, AttentionLayer):
        return True
    if not isinstance(operation, keras.layers.Layer):
        return False
    names = inspect.signature(operation.call).parameters
    return {"query", "value"} <= set(names)


def _shape(x):
    """The shape of a tensor; () where not even its rank is known."""
    try:
        return tuple(x.shape)
    except ValueError:
        return ()


def _same_steps(x, y):
    """Whether two tensors have batch and steps in common, as far as is known."""
    x, y = _shape(x), _shape(y)
    if min(len(x), len(y)) < 2:
        return False
    pairs = zip(x[:2], y[:2], strict=True)
    return all(a is None or b is None or a == b for a, b in pairs)


def _named(operation):
    name = getattr(operation, "name", None) or getattr(operation, "__name__", "the function")
    return f"{name!r} ({type(operation).__name__})" if hasattr(operation, "name") else repr(name)


def _advice(maker):
    if not isinstance(maker, keras.layers.Layer):
        layer = getattr(keras.layers, type(maker).__name__, None)
        if isinstance(layer, type) and issubclass(layer, keras.layers.Layer):
            return f", a plain operation; keras.layers.{layer.__name__} keeps masks"
        return ", a plain operation; pass the mask as an argument"
    if not maker.supports_masking:
        return ", a layer that does not support masks (`supports_masking` is False)"
    return ""

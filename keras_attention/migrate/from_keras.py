"""keras.layers: MultiHeadAttention, GroupQueryAttention, Attention and AdditiveAttention.

The layers with heads have the same weights here. `Attention` with "dot" is `LuongAttention("dot")`.
The additive scores of Keras have no projections; with W = U = 1 (times the scale where it stands
inside of tanh) `BahdanauAttention` gives the same numbers:

    Attention(score_mode="concat"):  w sum tanh(g (q + k))
    AdditiveAttention:               sum_d g_d tanh(q + k)_d
"""

import keras
import numpy as np

from keras_attention.layers.bahdanau import BahdanauAttention
from keras_attention.layers.luong import LuongAttention
from keras_attention.layers.multi_head import MultiHeadAttention
from keras_attention.migrate.weights import Weights

KINDS = {
    "MultiHeadAttention": keras.layers.MultiHeadAttention,
    "GroupQueryAttention": keras.layers.GroupQueryAttention,
    "Attention": keras.layers.Attention,
    "AdditiveAttention": keras.layers.AdditiveAttention,
}
WITH_HEADS = ("MultiHeadAttention", "GroupQueryAttention")
COMMON = ("name", "dtype", "dropout", "seed")


def attention_from_keras(layer, weights=None, size=None):
    """The layer of this package that computes what an attention layer of Keras does.

    | keras.layers | keras_attention |
    | --- | --- |
    | `MultiHeadAttention` | `MultiHeadAttention` |
    | `GroupQueryAttention` | `MultiHeadAttention(num_key_value_heads=...)` |
    | `Attention("dot")` | `LuongAttention("dot")` |
    | `Attention("concat")`, `AdditiveAttention` | `BahdanauAttention`, W and U the identity |

    Args:
        layer: a layer of Keras, built or not; or what `keras.saving.serialize_keras_object` makes
            of one (a dictionary with "class_name" and "config").
        weights: the layer's weights, by default its own: a list in the order of
            `layer.get_weights()`, or a dictionary with names such as "query/kernel".
        size: D, the features of queries and keys `[B, T, D]` of an additive score, where neither
            the weights nor a built layer tell.

    Returns:
        A layer of this package, with the layer's name, dtype policy and weights; not built if the
        layer is not, and no weights are given. The layer that was given stays as it is.

    Raises:
        ValueError: for another layer, a subclass, `flash_attention=True`, a quantised layer, or
            weights that are missing, too many or of another shape; the error names them.

    Example:

    >>> theirs = keras.layers.MultiHeadAttention(num_heads=2, key_dim=4)
    >>> x = np.ones((1, 5, 8), "float32")
    >>> expected = theirs(x, x)
    >>> ours = attention_from_keras(theirs)
    >>> np.allclose(ours(x, x), expected, atol=1e-6)
    True
    """
    kind, config = _kind_and_config(layer)
    is_built = isinstance(layer, keras.layers.Layer) and layer.built
    if weights is None and is_built:
        weights = {_short(weight.path): weight for weight in layer.weights}
    given = None if weights is None else _named(weights, _names(kind, config))
    build_config = (layer.get_build_config() or {}) if is_built else {}
    shapes = build_config.get("input_shape") or 2 * [(None, None, size)]
    if kind in WITH_HEADS:
        made = _with_heads(kind, config, given, build_config)
    elif kind == "Attention" and config["score_mode"] == "dot":
        made = _dot(config, given, shapes)
    else:
        made = _additive(kind, config, given, shapes)
    if given is not None:
        given.check_all_taken()
    made.trainable = config["trainable"]  # Of what `build` has made, too; as argument it is not.
    return made


def kind_of(layer):
    """The name in KINDS of a layer `[B, T, D]` of Keras, None for any other layer."""
    for kind, cls in KINDS.items():
        if type(layer) is cls:
            return kind
    return None


def _kind_and_config(layer):
    if isinstance(layer, dict) and {"class_name", "config"} <= set(layer):
        kind = {"GroupedQueryAttention": "GroupQueryAttention"}.get(layer["class_name"])
        kind = kind or layer["class_name"]
        if kind in KINDS:
            # Through a layer, so that what the config leaves out gets Keras's own default.
            config = {k: v for k, v in layer["config"].items() if k != "flash_attention"}
            _check_flash(layer["config"].get("flash_attention"), layer["config"].get("name", kind))
            return kind, KINDS[kind].from_config(config).get_config()
        raise ValueError(f"`layer` must be one of {', '.join(KINDS)}. Received: {kind!r}.")
    kind = kind_of(layer)
    if kind is None:
        bases = [name for name, cls in KINDS.items() if isinstance(layer, cls)]
        raise ValueError(
            f"`layer` must be one of keras.layers: {', '.join(KINDS)}. Received: {layer!r}"
            + (f", a subclass of {bases[0]}, which may compute something else." if bases else ".")
        )
    if not keras.config.is_flash_attention_enabled():
        _check_flash(getattr(layer, "_flash_attention", None), layer.name)
    if any(part.dtype_policy.quantization_mode for part in layer._flatten_layers()):
        raise ValueError(
            f"`layer` {layer.name!r} is quantised: carry over the one that it was made of, and "
            "quantise then."
        )
    return kind, layer.get_config()


def _check_flash(flash, name):
    if flash:
        raise ValueError(
            f"`layer` {name!r} was made with flash_attention=True, which has no counterpart: the "
            "layers of this package choose their way of computing from the sizes. Make it "
            "with flash_attention=None."
        )


def _options(config):
    """What all layers share: name, dtype policy, dropout with its seed."""
    return {name: config[name] for name in COMMON}


def _with_heads(kind, config, weights, build_config):
    """A `MultiHeadAttention`, built for what the kernels `[D, N, H]` take if there are any."""
    config = {name: x for name, x in config.items() if name != "trainable"}
    if kind == "GroupQueryAttention":
        config["num_heads"] = config.pop("num_query_heads")
        config["key_dim"] = config.pop("head_dim")
    layer = MultiHeadAttention(**config)
    if weights is None:
        return layer
    sizes = [weights.shape(f"{side}/kernel", 3)[0] for side in ("query", "value", "key")]
    rank, axes = 3, config.get("attention_axes")
    if "query_shape" in build_config.get("shapes_dict", {}):
        rank = len(build_config["shapes_dict"]["query_shape"])
    elif axes:
        rank = max(3, max(axes) + 2, 1 - min(axes))
    layer.build(*((None,) * (rank - 1) + (size,) for size in sizes))
    for variable in layer.weights:
        variable.assign(weights.take(_short(variable.path), tuple(variable.shape)))
    return layer


def _dot(config, weights, shapes):
    """A `LuongAttention`, built if the scale is learned and known."""
    layer = LuongAttention("dot", scale=config["use_scale"], **_options(config))
    if weights is not None:
        layer.build(*_with_size(shapes, config["name"]))
        layer.g.assign(weights.take("scale", ()))
    return layer


def _names(kind, config):
    """Names of the weights in the order of `get_weights()`."""
    if kind not in WITH_HEADS:
        concat = kind == "Attention" and config["score_mode"] == "concat"
        return ["scale"] * config["use_scale"] + ["concat_score_weight"] * concat
    sides = ["query", "key", *["gate"] * config["use_gate"], "value", "attention_output"]
    parts = ["kernel", *["bias"] * config["use_bias"]]
    return [f"{side}/{part}" for side in sides for part in parts]


def _short(path):
    """The last two parts of a weight's path, "query/kernel"; of a layer's own, the last."""
    parts = path.split("/")
    known = ("query", "key", "gate", "value", "attention_output")
    return "/".join(parts[-2:]) if parts[-2:-1] and parts[-2] in known else parts[-1]


def _named(weights, names):
    """`Weights` of a dictionary, or of a list in the order of `names`."""
    if not hasattr(weights, "items"):
        weights = list(weights)
        if len(weights) != len(names):
            raise ValueError(
                f"`weights` must be {len(names)} arrays: {', '.join(names)}. "
                f"Received: {len(weights)}."
            )
        weights = dict(zip(names, weights, strict=True))
    if not names and not weights:
        return None
    return Weights(weights)


def _with_size(shapes, name):
    """The shapes of query, value and key, if the features `[..., D]` are known."""
    if any(shape[-1] is None for shape in shapes):
        raise ValueError(
            f"`size`, the features of queries and keys, is needed: the weights of {name!r} do not "
            "tell it, as keras.layers has no projections in this score."
        )
    return shapes


def _additive(kind, config, weights, shapes):
    """A `BahdanauAttention` whose projections change nothing but the scale inside of tanh."""
    name, concat = config["name"], kind == "Attention"
    if weights is None and (concat or config["use_scale"]):
        raise ValueError(
            f"`layer` {name!r} must be built, or come with its `weights` "
            f"({', '.join(_names(kind, config))}): without them its score is not known."
        )
    if not concat and config["use_scale"]:
        size = weights.shape("scale", 1)[0]
        shapes = [shape if shape[-1] else (None, None, size) for shape in shapes]
    shapes = _with_size(shapes, name)
    size = shapes[0][-1]
    inside, v = 1.0, np.ones(size, "float32")
    if concat:
        inside = weights.take("scale", ()) if config["use_scale"] else 1.0
        v = v * weights.take("concat_score_weight", ())
    elif config["use_scale"]:
        v = weights.take("scale", (size,))
    made = BahdanauAttention(size, **_options(config))
    made.build(*shapes)
    for projection in (made.query_projection, made.key_projection):
        projection.kernel.assign(inside * np.eye(size, dtype="float32"))
    made.v.assign(v)
    return made

"""keras_hub.layers: TransformerEncoder and TransformerDecoder, one block each.

Their parts have Keras's own weights; only names differ. Two things differ in training alone: here
dropout also falls on the hidden units of the feed-forward network, and initializers are the
defaults.
"""

import keras

from keras_attention.layers.transformer import TransformerDecoderBlock, TransformerEncoderBlock
from keras_attention.migrate.weights import Weights, check_divides

KINDS = {
    "TransformerEncoder": TransformerEncoderBlock,
    "TransformerDecoder": TransformerDecoderBlock,
}
DENSES = {
    "query": "query_dense",
    "key": "key_dense",
    "value": "value_dense",
    "attention_output": "output_dense",
}


def block_from_keras_hub(layer, weights=None):
    """A transformer block with the weights of a `keras_hub.layers.TransformerEncoder` or `Decoder`.

    Args:
        layer: the layer of KerasHub, built; or what `keras.saving.serialize_keras_object` makes of
            one (a dictionary with "class_name" and "config"). KerasHub need not be installed.
        weights: a dictionary from the weights' paths to arrays, by default the layer's:
            `{w.path: w.numpy() for w in layer.weights}`. Of a path the last parts count, from
            e.g. "self_attention_layer" on.

    Returns:
        A built `TransformerEncoderBlock` or `TransformerDecoderBlock`, from `[B, T, D]` to
        `[B, T, D]`, with the layer's name and dtype policy. `padding_mask` is its `mask`, a
        decoder's `encoder_padding_mask` its `memory_mask`.

    Raises:
        ValueError: for another layer, one that is not built, a regularizer, an activation that
            `FeedForward` has not, or weights that are missing, too many or of another shape; the
            error names them.

    Example: docs/migration.md.
    """
    kind, config = _kind_and_config(layer)
    if weights is None:
        if isinstance(layer, dict) or not layer.built:
            raise ValueError(
                "`weights` must be given where `layer` is a config, or has not been built yet: "
                "build or call it first."
            )
        weights = {weight.path: weight for weight in layer.weights}
    weights = Weights(_below_layer(weights))
    size = weights.shape("feedforward_layer_norm/gamma", 1)[0]
    block = KINDS[kind](**_arguments(kind, config, size, weights))
    parts = [block.self_attention_residual, block.feed_forward_residual]
    norms = ["self_attention_layer_norm", "feedforward_layer_norm"]
    shape = (None, None, size)
    if kind == "TransformerDecoder" and block.attends_to_memory:
        memory_size = weights.shape("cross_attention/key/kernel", 3)[0]
        block.build(shape, (None, None, memory_size))
        _fill_attention(block.cross_attention, weights.part("cross_attention/"))
        parts.append(block.cross_attention_residual)
        norms.append("cross_attention_layer_norm")
    else:
        block.build(shape)
    own = "self_attention_layer/" if kind == "TransformerEncoder" else "self_attention/"
    _fill_attention(block.self_attention, weights.part(own))
    for name, residual in zip(norms, parts, strict=True):
        part = weights.part(f"{name}/")
        residual.norm.set_weights([part.take("gamma", (size,)), part.take("beta", (size,))])
    _fill_feed_forward(block.feed_forward, weights, size, config["intermediate_dim"])
    weights.check_all_taken()
    return block


def _kind_and_config(layer):
    is_config = isinstance(layer, dict) and {"class_name", "config"} <= set(layer)
    kind = layer["class_name"].rpartition(">")[2] if is_config else type(layer).__name__
    is_layer = isinstance(layer, keras.layers.Layer)
    if kind not in KINDS or not (is_config or is_layer) or isinstance(layer, tuple(KINDS.values())):
        raise ValueError(
            "`layer` must be a TransformerEncoder or TransformerDecoder of keras_hub.layers. "
            f"Received: {kind if is_config else layer!r}."
        )
    config = layer["config"] if is_config else layer.get_config()
    if "intermediate_dim" not in config:
        raise ValueError(
            f"`layer` must be a {kind} of keras_hub.layers, whose config has `intermediate_dim`. "
            f"Received a config with {', '.join(sorted(config))}."
        )
    return kind, config


def _below_layer(weights):
    """The weights with their names from the part of the layer on, "feedforward_.../kernel"."""
    if not hasattr(weights, "items"):
        raise ValueError(
            "`weights` must be a dictionary from paths to arrays. "
            f"Received: {type(weights).__name__}."
        )
    named = {}
    for path, array in weights.items():
        parts = path.split("/")
        starts = ("self_attention", "cross_attention", "feedforward")
        first = next((i for i, part in enumerate(parts) if part.startswith(starts)), 0)
        named["/".join(parts[first:])] = array
    return named


def _arguments(kind, config, size, weights):
    """The constructor arguments of the block, for inputs `[B, T, size]`."""
    for name in ("kernel_regularizer", "bias_regularizer"):
        if config.get(name) is not None:
            raise ValueError(
                f"`{name}` has no counterpart in a block of this package. "
                f"Received: {config[name]!r}."
            )
    num_heads, dropout = config["num_heads"], config.get("dropout", 0)
    if size // num_heads == 0:
        check_divides(num_heads, size, "feedforward_layer_norm/gamma")
    arguments = {
        "num_heads": num_heads,
        "feedforward_size": config["intermediate_dim"],
        "key_dim": size // num_heads if size % num_heads else None,
        "activation": config.get("activation", "relu"),
        "norm_first": config.get("normalize_first", False),
        "dropout": dropout,
        "attention_dropout": dropout,
        "epsilon": config.get("layer_norm_epsilon", 1e-5),
    }
    if kind == "TransformerDecoder":
        arguments["cross_attention"] = "cross_attention/query/kernel" in weights
    common = ("name", "trainable", "dtype", "activity_regularizer")
    return {**arguments, **{name: config[name] for name in common if config.get(name) is not None}}


def _fill_attention(layer, weights):
    for name, attribute in DENSES.items():
        dense, part = getattr(layer, attribute), weights.part(f"{name}/")
        for variable, own in ((dense.kernel, "kernel"), (dense.bias, "bias")):
            variable.assign(part.take(own, tuple(variable.shape)))


def _fill_feed_forward(layer, weights, size, hidden):
    arrays = []
    for name, shape in (("intermediate", (size, hidden)), ("output", (hidden, size))):
        part = weights.part(f"feedforward_{name}_dense/")
        arrays += [part.take("kernel", shape), part.take("bias", shape[1:])]
    layer.set_weights(arrays)

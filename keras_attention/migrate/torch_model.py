"""A whole `transformer` with the weights of a PyTorch model around torch.nn.Transformer."""

from keras_attention.layers.transformer import TransformerEncoderBlock
from keras_attention.migrate.torch_blocks import fill_block, fill_norm, stack_layers
from keras_attention.migrate.weights import Weights
from keras_attention.models.transformer import Transformer

PLAIN = ("relu", "gelu", "silu")  # activations of one projection


def load_transformer_from_torch(
    model, weights, prefix="", source_embedding=None, target_embedding=None, logits=None
):
    """Gives a model that `transformer` made the weights of a PyTorch model.

    That is the usual model around `torch.nn.Transformer(norm_first=True)`: embeddings times
    sqrt(D), sinusoidal or learned positions, and a linear layer to the logits `[B, T, V]`. Made of
    the same sizes with `transformer(..., tied_embeddings=False)`, the model then gives the same
    numbers, and translates, searches and exports like any other.

    Args:
        model: what `transformer(...)` returned. The ids 0, 1 and 2 are padding, start and end
            here: a vocabulary with others needs its rows in that order.
        weights: the `state_dict()` of the whole model.
        prefix: where the names of `torch.nn.Transformer` begin, e.g. "transformer.".
        source_embedding, target_embedding: names of the embeddings' arrays `[V, D]`, e.g.
            "source_embedding.weight". What is None is left as it is.
        logits: the name of the linear layer to the logits, e.g. "generator", whose `weight` and
            `bias` are taken.

    Returns:
        The model.

    Raises:
        ValueError: if the model is no `Transformer`, or has pieces that PyTorch's has not; if an
            array is missing, is one too many below `prefix`, or has another shape (the error
            names it).

    Example: docs/migration.md.
    """
    _check_model(model)
    weights = Weights(weights)
    inner = weights.part(prefix)
    if not inner.names():
        raise ValueError(f"`weights` has no name that begins with {prefix!r}.")
    encoder, decoder = inner.part("encoder."), inner.part("decoder.")
    if not model.get_config()["norm_first"] and "norm.weight" in encoder:
        raise ValueError(
            f"{encoder.called('norm.weight')} in `weights`: `torch.nn.Transformer` normalises "
            "behind both stacks, which a `transformer` with `norm_first=False` does not. Take "
            "`transformer_from_torch`."
        )
    blocks = [layer for layer in model.layers if isinstance(layer, TransformerEncoderBlock)]
    _fill_stack("encoder", blocks, encoder)
    _fill_stack("decoder", model.get_layer("decoder").blocks, decoder)
    if model.get_config()["norm_first"]:
        fill_norm(model.get_layer("encoder_norm"), encoder.part("norm."))
        fill_norm(model.get_layer("decoder").norm, decoder.part("norm."))
    for side, name in (("source", source_embedding), ("target", target_embedding)):
        if name is not None:
            embedding = _layer(model, f"{side}_embedding")
            shape = tuple(embedding.weights[0].shape)
            embedding.set_weights([weights.take(name, shape)])
    if logits is not None:
        dense, part = _layer(model, "logits"), weights.part(f"{logits}.")
        size, count = dense.kernel.shape
        kernel = part.take("weight", (count, size)).T
        dense.set_weights([kernel, part.take("bias", (count,))])
    inner.check_all_taken()
    return model


def _check_model(model):
    """Raises unless the model, to `[B, T, V]`, is made of what PyTorch's has."""
    if not isinstance(model, Transformer):
        raise ValueError(
            f"`model` must be what `transformer(...)` returned. Received: {type(model).__name__}."
        )
    config = model.get_config()
    for name, known in (
        ("position", ("sinusoidal", "learned", None)),
        ("normalization", ("layer",)),
        ("activation", PLAIN),
        ("attention_options", (None, {})),
    ):
        if config[name] not in known:
            raise ValueError(
                f"`model` must be made with `{name}` {' or '.join(map(repr, known))}: "
                f"`torch.nn.Transformer` has no other. Received: {config[name]!r}."
            )


def _fill_stack(name, blocks, weights):
    """Gives the blocks of a stack, over `[B, T, D]`, the weights of PyTorch's layers."""
    parts = stack_layers(weights)
    if len(parts) != len(blocks):
        raise ValueError(
            f"`weights` has {len(parts)} layers of the {name}, `model` has {len(blocks)} blocks."
        )
    for block, part in zip(blocks, parts, strict=True):
        fill_block(block, part)


def _layer(model, name):
    """The layer of that name; the model may lack it, as embeddings `[V, D]` may be tied."""
    names = [layer.name for layer in model.layers]
    if name not in names:
        raise ValueError(
            f"`model` has no layer {name!r} of its own, as it was made with `tied_embeddings="
            f"{model.get_config()['tied_embeddings']!r}`."
        )
    return model.get_layer(name)

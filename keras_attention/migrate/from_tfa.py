"""tfa.seq2seq of TensorFlow Addons: attention mechanisms and AttentionWrapper.

BahdanauAttention                        v^T tanh(W q + U h)
BahdanauAttention(normalize=True)        (g v / |v|)^T tanh(W q + U h + b)
LuongAttention                           q^T (h W): the paper's "general"
LuongAttention(scale=True)               g q^T (h W)
Bahdanau- and LuongMonotonicAttention    the same plus r, see `MonotonicAlignment`

AttentionWrapper, with a_0 = 0:
    s_t = cell([x_t; a_{t-1}], s_{t-1})
    c_t = attention(query = s_t)
    a_t = attention_layer([s_t; c_t]), or c_t without such a layer
and its output is a_t, or s_t with output_attention=False.
"""

import keras
import numpy as np

from keras_attention.decoders import cell as cells
from keras_attention.decoders.bahdanau import BahdanauDecoder
from keras_attention.decoders.luong import LuongDecoder
from keras_attention.layers.bahdanau import BahdanauAttention
from keras_attention.layers.luong import LuongAttention
from keras_attention.layers.monotonic import MonotonicAlignment
from keras_attention.migrate.tfa_variables import tfa_weights

CELLS = {1: keras.layers.SimpleRNNCell, 3: keras.layers.GRUCell, 4: keras.layers.LSTMCell}


def attention_from_tfa(variables, config=None, prefix="", **kwargs):
    """The attention layer with the weights of a mechanism of `tfa.seq2seq`.

    Which mechanism it was, the variables tell: `attention_v` is Bahdanau's, `attention_g` comes of
    `normalize` or `scale`, `attention_score_bias` of a monotonic one.

    Args:
        variables: a dictionary from names to arrays, such as `{v.name: v.numpy() for v in
            mechanism.variables}`; or the path of a TensorFlow checkpoint. Needed are
            `memory_layer/kernel` `[Dm, U]`, and of Bahdanau's `query_layer/kernel` `[Dq, U]` and
            `attention_v` `[U]`.
        config: the mechanism's `get_config()`, or a dictionary of some of its arguments; of use
            are `mode` and `sigmoid_noise` of a monotonic mechanism. What contradicts the
            variables is an error.
        prefix: where the variables' names begin; of a checkpoint other names are left alone.
        **kwargs: further arguments of `keras.layers.Layer` (name, dtype, ...).

    Returns:
        A built `BahdanauAttention` or `LuongAttention("general")`, called with the decoder's state
        `[B, Dq]` and the memory `[B, S, Dm]`. `memory_sequence_length` is its `value_mask`.

    Raises:
        ValueError: if a variable is missing, is one too many, or has another shape; the error
            names it. Also for `probability_fn` other than "softmax", and a mechanism without
            `memory_layer`.

    Example:

    >>> variables = {
    ...     "query_layer/kernel": np.ones((5, 8)),
    ...     "memory_layer/kernel": np.ones((6, 8)),
    ...     "attention_v": np.ones(8),
    ... }
    >>> layer = attention_from_tfa(variables)
    >>> layer(np.ones((2, 5), "float32"), np.ones((2, 7, 6), "float32")).shape
    TensorShape([2, 6])
    """
    weights = tfa_weights(variables, prefix, parts=("attention",))
    layer = _attention(weights, config, **kwargs)
    weights.check_all_taken()
    return layer


def decoder_from_tfa(
    variables,
    config=None,
    prefix="",
    cell=None,
    output_attention=True,
    input_feeding=True,
    attention_activation=None,
    **kwargs,
):
    """The decoder with the weights of an `AttentionWrapper` of `tfa.seq2seq`.

    | AttentionWrapper | decoder |
    | --- | --- |
    | with an attention layer | `LuongDecoder(input_feeding=True)` |
    | the same, and a `cell_input_fn` that drops the attention | `LuongDecoder()` |
    | without one, `output_attention=False` | `BahdanauDecoder(attend_first=False)` |
    | without one | `LuongDecoder(input_feeding=True)`, W_c = [1 0], not to be trained |

    Args:
        variables: as of `attention_from_tfa`: those of the mechanism, of the cell (`kernel`,
            `recurrent_kernel`, `bias`, of a stack of cells those of each) and of the attention
            layer (`attention_layer/kernel` `[U + Dm, A]`). Of a checkpoint other variables are
            left alone.
        config: the configuration of the mechanism, as of `attention_from_tfa`.
        prefix: where the variables' names begin; or a dictionary of "attention", "cell" and
            "attention_layer" with the prefix of each, e.g. for an attention layer of another name.
        cell: the Keras cell or list of cells; by default a GRUCell, LSTMCell or SimpleRNNCell as
            the shapes tell, with Keras's own activations.
        output_attention: as of the wrapper.
        input_feeding: whether the attention goes into the next step, as by the default of the
            wrapper's `cell_input_fn`.
        attention_activation: the activation of the attention layer, e.g. "tanh";
            `attention_layer_size` made one without.
        **kwargs: further arguments of `keras.layers.Layer` (name, dtype, ...).

    Returns:
        A built decoder, from inputs `[B, T, D]` and memory `[B, S, Dm]` to outputs `[B, T, A]`.

    Raises:
        ValueError: if a variable is missing, is one too many, or has another shape; the error
            names it. Also for a wrapper with no counterpart: `output_attention=False` with an
            attention layer, several mechanisms.

    Example: docs/migration.md has a whole model.
    """
    weights = tfa_weights(variables, prefix)
    attention = _attention(weights, config)
    cell = _cell(weights) if cell is None else cells.as_cell(cell)
    memory_size = weights.shape("memory_layer/kernel", 2)[0]
    has_layer = "attention_layer/kernel" in weights
    fed = weights.shape("attention_layer/kernel", 2)[1] if has_layer else memory_size
    decoder = _decoder(
        cell, attention, weights, fed, output_attention, input_feeding, attention_activation, kwargs
    )
    size = weights.shape("cell/0/kernel", 2)[0] - fed * input_feeding
    if size < 1:
        raise ValueError(
            f"{weights.called('cell/0/kernel')} must have more than {fed} rows: those of the "
            f"input, and {fed} of the attention that is fed to it. Without the latter pass "
            "`input_feeding=False`. "
            f"Received shape {weights.shape('cell/0/kernel', 2)}."
        )
    decoder.build((None, None, size), (None, None, memory_size))
    _fill_cell(decoder.cell, weights)
    if isinstance(decoder, LuongDecoder):
        _fill_combine(decoder, weights, cells.output_size(cell), memory_size)
    weights.check_all_taken()
    return decoder


def _attention(weights, config, **kwargs):
    """A built attention layer with the variables of a mechanism."""
    config = _checked(config, weights)
    if "attention_score_bias" in weights:
        mode = config.get("mode", "parallel")
        kwargs["normalizer"] = MonotonicAlignment(
            noise=config.get("sigmoid_noise", 0.0),
            mode="parallel" if mode == "hard" else mode,
            hard=mode == "hard",
        )
    scaled = "attention_g" in weights
    memory_size, units = weights.shape("memory_layer/kernel", 2)
    if "attention_v" in weights:
        layer = BahdanauAttention(units, normalize=scaled, **kwargs)
        query_size = weights.shape("query_layer/kernel", 2)[0]
    else:
        layer, query_size = LuongAttention("general", scale=scaled, **kwargs), units
    layer.build((None, query_size), (None, None, memory_size))
    layer.key_projection.kernel.assign(weights.take("memory_layer/kernel", (memory_size, units)))
    if isinstance(layer, BahdanauAttention):
        kernel = weights.take("query_layer/kernel", (query_size, units))
        layer.query_projection.kernel.assign(kernel)
        layer.v.assign(weights.take("attention_v", (units,)))
        if scaled:
            layer.query_projection.bias.assign(weights.take("attention_b", (units,)))
    if scaled:
        layer.g.assign(weights.take("attention_g", ()))
    if "attention_score_bias" in weights:
        layer.normalizer.r.assign(weights.take("attention_score_bias", ()))
    return layer


def _checked(config, weights):
    """The mechanism's config, if it does not contradict its variables `[...]`."""
    config = {} if config is None else dict(config)
    if config.get("probability_fn", "softmax") != "softmax":
        raise ValueError(
            "`probability_fn` must be 'softmax'; another normaliser is an argument of the layer "
            f"that you make yourself. Received: {config['probability_fn']!r}."
        )
    units = weights.shape("memory_layer/kernel", 2)[1]
    if config.get("units", units) != units:
        raise ValueError(
            f"`config` has units={config['units']!r}, but 'memory_layer/kernel' has shape "
            f"{weights.shape('memory_layer/kernel', 2)}."
        )
    for name in ("normalize", "scale"):
        has = "attention_g" in weights
        if config.get(name, has) != has:
            raise ValueError(
                f"`config` has {name}={config[name]!r}, but the variables have "
                f"{'an' if has else 'no'} 'attention_g'."
            )
    return config


def _cell(weights):
    """The cell, or the list of them, that the shapes of kernels `[D, k U]` tell, as one cell."""
    made, number = [], 0
    while f"cell/{number}/recurrent_kernel" in weights or not made:
        units, width = weights.shape(f"cell/{number}/recurrent_kernel", 2)
        kind = CELLS.get(width // units if units and width % units == 0 else None)
        if kind is None:
            raise ValueError(
                f"{weights.called(f'cell/{number}/recurrent_kernel')} must have shape [U, U], "
                "[U, 3 U] or [U, 4 U], as a SimpleRNNCell, GRUCell or LSTMCell has; another cell "
                "is given as `cell`. "
                f"Received shape {(units, width)}."
            )
        options = {"use_bias": f"cell/{number}/bias" in weights}
        if kind is keras.layers.GRUCell and options["use_bias"]:
            options["reset_after"] = width != _size(weights, f"cell/{number}/bias")
        made.append(kind(units, **options))
        number += 1
    return cells.as_cell(made)


def _size(weights, name):
    """The number of entries of a bias `[k U]` or `[2, k U]`."""
    for rank in (1, 2):
        try:
            return int(np.prod(weights.shape(name, rank)))
        except ValueError:
            if rank == 2:
                raise


def _decoder(
    cell, attention, weights, fed, output_attention, input_feeding, attention_activation, kwargs
):
    """The decoder, not built, that does what the wrapper did."""
    has_layer = "attention_layer/kernel" in weights
    if has_layer and not output_attention:
        raise ValueError(
            "`output_attention=False` with an attention layer has no counterpart: a decoder here "
            "puts out what it feeds to the next step. Received 'attention_layer/kernel'."
        )
    if not (has_layer or output_attention or input_feeding):
        raise ValueError(
            "`input_feeding=False` and `output_attention=False`: nothing reads the attention."
        )
    if attention_activation is not None and not has_layer:
        raise ValueError(
            "`attention_activation` is that of the attention layer, and there is no "
            f"'attention_layer/kernel'. Received: {attention_activation!r}."
        )
    if not has_layer and not output_attention:
        return BahdanauDecoder(cell, attention, attend_first=False, **kwargs)
    return LuongDecoder(
        cell,
        attention,
        units=fed,
        use_bias="attention_layer/bias" in weights,
        activation=attention_activation,
        input_feeding=input_feeding,
        **kwargs,
    )


def _fill_cell(cell, weights):
    stacked = cell.cells if isinstance(cell, keras.layers.StackedRNNCells) else [cell]
    for number, one in enumerate(stacked):
        for name in ("kernel", "recurrent_kernel", "bias"):
            variable = getattr(one, name, None)
            if variable is not None:
                full = f"cell/{number}/{name}"
                variable.assign(weights.take(full, tuple(variable.shape)))


def _fill_combine(decoder, weights, units, memory_size):
    """W_c of [c; s]; tfa's is of [s; c]."""
    if "attention_layer/kernel" not in weights:  # the output is c itself
        eye = np.eye(memory_size, memory_size + units, dtype="float32").T
        decoder.combine.kernel.assign(eye)
        return
    shape = (units + memory_size, decoder.units)
    kernel = weights.take("attention_layer/kernel", shape)
    decoder.combine.kernel.assign(np.concatenate([kernel[units:], kernel[:units]]))
    if decoder.combine.bias is not None:
        decoder.combine.bias.assign(weights.take("attention_layer/bias", shape[1:]))

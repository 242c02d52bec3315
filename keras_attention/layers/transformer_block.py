"""What the encoder and the decoder block of the transformer share."""

import keras
from keras import ops

from keras_attention import checks, masks
from keras_attention.layers.feed_forward import FeedForward
from keras_attention.layers.multi_head import MultiHeadAttention
from keras_attention.layers.outputs import VaryingOutputs
from keras_attention.layers.residual import Residual

# What the blocks tell their attention layers themselves.
OWN_OPTIONS = {"num_heads", "key_dim", "dropout", "use_bias", "seed", "dtype", "name"}


class TransformerBlock(VaryingOutputs, keras.layers.Layer):
    """Base of the blocks: self-attention and feed-forward network, each with a residual.

        x = residual(x, attention(x, x, x))
        x = residual(x, feed_forward(x))

    A subclass adds the call. Args as of `TransformerEncoderBlock`.
    """

    attentions = ("self",)  # names of the attention weights that a call can return

    def __init__(
        self,
        num_heads,
        feedforward_size,
        key_dim=None,
        activation="relu",
        normalization="layer",
        norm_first=False,
        dropout=0.1,
        attention_dropout=0.0,
        use_bias=True,
        attention_options=None,
        epsilon=1e-5,
        seed=None,
        **kwargs,
    ):
        # Keras would cast `attention_bias` to half precision. The block casts its inputs itself.
        super().__init__(autocast=False, **kwargs)
        self.supports_masking = True
        self.num_heads = checks.check_positive("num_heads", num_heads)
        self.key_dim = None if key_dim is None else checks.check_positive("key_dim", key_dim)
        self.normalization, self.epsilon = normalization, epsilon
        self.norm_first = checks.check_flag("norm_first", norm_first)
        self.dropout = checks.check_fraction("dropout", dropout)
        self.attention_dropout = checks.check_fraction("attention_dropout", attention_dropout)
        self.use_bias = checks.check_flag("use_bias", use_bias)
        self.seed = seed
        self.attention_options = check_options("attention_options", attention_options)
        self.feed_forward = FeedForward(
            checks.check_positive("feedforward_size", feedforward_size),
            activation,
            dropout,
            use_bias,
            seed=self._own_seed(0),
            dtype=self.dtype_policy,
            name="feed_forward",
        )
        self.self_attention = None  # made in `build`, where D is known
        self.self_attention_residual = self._residual(1, "self_attention_residual")
        self.feed_forward_residual = self._residual(2, "feed_forward_residual")

    def _own_seed(self, index):
        """A seed for sub-layer number `index`, so that no two drop the same."""
        return None if self.seed is None else self.seed + index

    def _residual(self, index, name):
        return Residual(
            self.normalization,
            self.norm_first,
            self.dropout,
            self.epsilon,
            seed=self._own_seed(index),
            dtype=self.dtype_policy,
            name=name,
        )

    def _attention(self, index, name, size, options):
        if self.key_dim is None and size % self.num_heads:
            raise ValueError(
                f"`num_heads` = {self.num_heads} must divide the features of `x` where `key_dim` "
                f"is None. Received an x with {size} features."
            )
        return MultiHeadAttention(
            self.num_heads,
            size // self.num_heads if self.key_dim is None else self.key_dim,
            dropout=self.attention_dropout,
            use_bias=self.use_bias,
            seed=self._own_seed(index),
            dtype=self.dtype_policy,
            name=name,
            **options,
        )

    def build(self, x_shape):
        x_shape = tuple(x_shape)
        if len(x_shape) not in (2, 3) or x_shape[-1] is None:
            raise ValueError(f"`x` must have shape [B, T, D], D known. Received shape {x_shape}.")
        self._size = x_shape[-1]
        shape = (x_shape[0], None, self._size)
        self.self_attention = self._attention(
            3, "self_attention", self._size, self.attention_options
        )
        self.self_attention.build(shape)
        self.feed_forward.build(shape)
        for residual in (self.self_attention_residual, self.feed_forward_residual):
            residual.build(shape)
        self.built = True

    def _check_x(self, x, mask):
        """x in the block's dtype, 0 in padding, and its mask."""
        x = checks.check_float(x, "x", self.compute_dtype)
        if len(x.shape) not in (2, 3) or x.shape[-1] != self._size:
            raise ValueError(
                f"`x` must have shape [B, T, {self._size}], or [B, {self._size}] for one step. "
                f"Received shape {tuple(x.shape)}."
            )
        mask = masks.as_mask(mask, "mask")
        mask = checks.fit_mask("mask", mask, x.shape[:-1], ops.shape(x)[:-1])
        if mask is not None:  # NaN in padding must not reach the gradients
            x = ops.where(mask[..., None], x, ops.zeros((), x.dtype))
        return x, mask

    def _sublayer(self, residual, x, function, training):
        """A sub-layer with its residual: the new x, and what `function` returns besides y."""
        y, *more = as_tuple(function(residual.enter(x)))
        return residual(x, y, training=training), more

    def _feed_forward(self, x, training):
        def function(x):
            return self.feed_forward(x, training=training)

        return self._sublayer(self.feed_forward_residual, x, function, training)[0]

    def compute_output_spec(self, *args, **kwargs):
        # Infers from `call`, which also checks the arguments.
        return keras.Operation.compute_output_spec(self, *args, **kwargs)

    def compute_output_shape(self, x_shape):
        return tuple(x_shape)

    def get_config(self):
        own = {
            "num_heads": self.num_heads,
            "feedforward_size": self.feed_forward.size,
            "key_dim": self.key_dim,
            "activation": self.feed_forward.activation,
            "normalization": self.normalization,
            "norm_first": self.norm_first,
            "dropout": self.dropout,
            "attention_dropout": self.attention_dropout,
            "use_bias": self.use_bias,
            "attention_options": serialize_options(self.attention_options),
            "epsilon": self.epsilon,
            "seed": self.seed,
        }
        return {**super().get_config(), **own}

    @classmethod
    def from_config(cls, config, custom_objects=None):
        config = dict(config)
        for name in ("attention_options", "cross_attention_options"):
            if config.get(name):
                config[name] = {
                    key: keras.saving.deserialize_keras_object(x, custom_objects)
                    if isinstance(x, dict) and "class_name" in x
                    else x
                    for key, x in config[name].items()
                }
        return cls(**config)


def check_options(name, options):
    """Further arguments of an attention layer `[B, T, D]` -> `[B, T, D]`, or a ValueError.

    Args:
        name: what error messages call it.
        options: a dictionary, or None for none.

    Returns:
        A dictionary.
    """
    if options is None:
        return {}
    if not isinstance(options, dict) or OWN_OPTIONS & set(options):
        raise ValueError(
            f"`{name}` must be a dictionary of arguments of MultiHeadAttention other than "
            f"{', '.join(sorted(OWN_OPTIONS))}, which the block gives it. Received: {options!r}."
        )
    return dict(options)


def serialize_options(options):
    """A dictionary of options as a part of a config; the inverse is in `from_config`."""
    serialize = keras.saving.serialize_keras_object
    return {name: serialize(x) for name, x in options.items()} or None


def as_tuple(results):
    """What a layer returned as a tuple, also where it is one tensor."""
    return results if isinstance(results, tuple) else (results,)


def given(**arguments):
    """The arguments that are not None."""
    return {name: x for name, x in arguments.items() if x is not None}

"""Encoder and decoder block of the transformer."""

import keras

from keras_attention import checks
from keras_attention.layers.carry_mask import carry_mask
from keras_attention.layers.transformer_block import (
    TransformerBlock,
    check_options,
    given,
    serialize_options,
)


@keras.saving.register_keras_serializable(package="keras_attention")
class TransformerEncoderBlock(TransformerBlock):
    """Encoder block, section 3.1 of [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762).

        post-norm:  x = norm(x + attention(x, x, x));  x = norm(x + feed_forward(x))
        pre-norm:   x = x + attention(norm(x), ...);   x = x + feed_forward(norm(x))

    Pre-norm (`norm_first=True`) is table 1 of
    [Xiong et al., 2020](https://arxiv.org/abs/2002.04745); behind the last block of such a stack
    comes one more normalisation.

    Args:
        num_heads: N, the number of heads.
        feedforward_size: number of hidden units of the feed-forward network.
        key_dim: size of each head; by default D / N.
        activation: "relu", "gelu", "swiglu", ..., see `FeedForward`.
        normalization: "layer" or "rms".
        norm_first: whether each sub-layer reads normalised x, instead of its sum with x being
            normalised.
        dropout: the fraction dropped in training of what each sub-layer adds to x, and of the
            hidden units of the feed-forward network.
        attention_dropout: the fraction of attention weights dropped in training.
        use_bias: whether projections have biases.
        attention_options: dictionary of further arguments of `MultiHeadAttention`, e.g.
            `{"sliding_window": 64, "num_key_value_heads": 2}`.
        epsilon: what keeps the root of the normalisation from 0.
        seed: integer seed of all dropout in the block.
        **kwargs: arguments of `keras.layers.Layer`.

    Call arguments:
        x: `[B, T, D]`.
        mask: `[B, T]`, True = a real step; by default the Keras mask of x.
        attention_mask, attention_bias: `[B, T, T]` or `[B, N, T, T]`, see `MultiHeadAttention`.
        positions: `[T]` or `[B, T]`, the positions of the steps, where the attention uses them.
        return_attention_scores: whether to return the attention weights.
        use_causal_mask: whether a step may attend only to itself and to earlier ones.
        training: whether to apply dropout.
        x_mask: where Keras hands the mask of x if there are other tensors; use `mask`.

    Returns:
        `[B, T, D]`, or that and the weights `[B, N, T, T]`.

    Masking:
        Padding is not attended to and adds nothing to the gradients, even NaN. The output carries
        the mask of x.

    Raises:
        ValueError: for an unknown name, a number out of range, N that does not divide D, masks
            and shapes that do not fit.

    Example:

    >>> import numpy as np
    >>> block = TransformerEncoderBlock(num_heads=2, feedforward_size=32, norm_first=True)
    >>> x, weights = block(np.ones((1, 5, 8)), return_attention_scores=True)
    >>> x.shape, weights.shape
    (TensorShape([1, 5, 8]), TensorShape([1, 2, 5, 5]))
    """

    def call(
        self,
        x,
        mask=None,
        attention_mask=None,
        attention_bias=None,
        positions=None,
        return_attention_scores=False,
        use_causal_mask=False,
        training=None,
        x_mask=None,
    ):
        x, mask = self._check_x(x, x_mask if mask is None else mask)

        def attend(x):
            return self.self_attention(
                x,
                query_mask=mask,
                attention_mask=attention_mask,
                attention_bias=attention_bias,
                **given(positions=positions),
                return_attention_scores=return_attention_scores,
                use_causal_mask=use_causal_mask,
                training=training,
            )

        x, weights = self._sublayer(self.self_attention_residual, x, attend, training)
        x = self._feed_forward(x, training)
        if mask is not None:
            x = carry_mask(x, mask=mask)
        return (x, *weights) if weights else x


@keras.saving.register_keras_serializable(package="keras_attention")
class TransformerDecoderBlock(TransformerBlock):
    """Decoder block, section 3.1 of [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762).

        post-norm:  x = norm(x + attention(x, x, x))           (masked: no later steps)
                    x = norm(x + attention(x, memory, memory))
                    x = norm(x + feed_forward(x))

    With `norm_first=True` each sub-layer reads norm(x), as in `TransformerEncoderBlock`. Without
    cross-attention it is the block of a causal language model.

    Args:
        num_heads, feedforward_size: as of `TransformerEncoderBlock`.
        cross_attention: whether the block attends to a memory.
        cross_attention_options: dictionary of further arguments of `MultiHeadAttention` for the
            attention to the memory.
        **kwargs: key_dim, activation, normalization, norm_first, dropout, attention_dropout,
            use_bias, attention_options (of the self-attention), epsilon and seed as of
            `TransformerEncoderBlock`, and arguments of `keras.layers.Layer`.

    Call arguments:
        x: `[B, T, D]`; with a cache also one step `[B, D]`.
        memory: `[B, S, Dm]`, the encoder's outputs.
        mask: `[B, T]`, True = a real step; by default the Keras mask of x.
        memory_mask: `[B, S]`, True = may be attended; by default the Keras mask of `memory`.
        attention_mask, attention_bias: of the self-attention, `[B, T, T]` or `[B, N, T, T]`.
        positions: `[T]` or `[B, T]`, the positions of the steps, where the attention uses them.
        cache: what `start_cache` or the last call returned: keys and values of earlier steps.
        projected_memory: what `precompute` returned, instead of `memory`.
        return_attention_scores: whether to return the attention weights.
        use_causal_mask: whether a step may attend only to itself and to earlier ones.
        training: whether to apply dropout.
        x_mask: where Keras hands the mask of x; use `mask`.

    Returns:
        x `[B, T, D]`; a tuple if there is more: the weights of the self-attention `[B, N, T, T]`
        and of the cross-attention `[B, N, T, S]` if asked for, and the new cache if one was given.

    Masking:
        Padding is not attended to and adds nothing to the gradients, even NaN. The output carries
        the mask of x.

    Raises:
        ValueError: for an unknown name, a number out of range, N that does not divide D, a memory
            without cross-attention or the other way round, masks and shapes that do not fit.

    Example:

    >>> import numpy as np
    >>> block = TransformerDecoderBlock(num_heads=2, feedforward_size=32)
    >>> x, memory = np.ones((1, 5, 8)), np.ones((1, 7, 8))
    >>> x, own, cross = block(x, memory, return_attention_scores=True)
    >>> x.shape, own.shape, cross.shape
    (TensorShape([1, 5, 8]), TensorShape([1, 2, 5, 5]), TensorShape([1, 2, 5, 7]))
    """

    def __init__(
        self,
        num_heads,
        feedforward_size,
        cross_attention=True,
        cross_attention_options=None,
        **kwargs,
    ):
        super().__init__(num_heads, feedforward_size, **kwargs)
        wanted = checks.check_flag("cross_attention", cross_attention)
        self.attentions = ("self", "cross") if wanted else ("self",)
        self.cross_attention = None  # made in `build`
        options = check_options("cross_attention_options", cross_attention_options)
        if options and not wanted:
            raise ValueError(
                f"`cross_attention_options` need `cross_attention=True`. Received: {options!r}."
            )
        self.cross_attention_options = options
        if wanted:
            self.cross_attention_residual = self._residual(4, "cross_attention_residual")

    def build(self, x_shape, memory_shape=None):
        super().build(x_shape)
        if not self.attends_to_memory:
            return
        if memory_shape is None:
            raise ValueError(
                "A block with `cross_attention` must be built with the shape of its memory: call "
                "it on `x` and `memory` first, or call its `build(x_shape, memory_shape)`."
            )
        self.cross_attention = self._attention(
            5, "cross_attention", self._size, self.cross_attention_options
        )
        x_shape = (x_shape[0], None, self._size)
        self.cross_attention.build(x_shape, tuple(memory_shape))
        self.cross_attention_residual.build(x_shape)

    def compute_output_shape(self, x_shape, memory_shape=None):
        return super().compute_output_shape(x_shape)

    @property
    def attends_to_memory(self):
        """Whether the block has cross-attention."""
        return "cross" in self.attentions

    def precompute(self, memory, memory_mask=None):
        """Projects the memory once, for many calls with `projected_memory`.

        Args:
            memory: `[B, S, Dm]`.
            memory_mask: `[B, S]`, True = may be attended; by default the Keras mask of `memory`.

        Returns:
            A tuple of tensors with the batch first, see `MultiHeadAttention.precompute`.
        """
        self._check_memory(memory)
        return self.cross_attention.precompute(memory, value_mask=memory_mask)

    @property
    def drops_old_steps(self):
        """Whether the cache keeps no more than a window of steps."""
        return self.self_attention.drops_old_steps

    def start_cache(self, batch_size, max_length=None):
        """The empty cache of the self-attention, see `MultiHeadAttention.start_cache`."""
        return self.self_attention.start_cache(batch_size, max_length)

    def call(
        self,
        x,
        memory=None,
        mask=None,
        memory_mask=None,
        attention_mask=None,
        attention_bias=None,
        positions=None,
        cache=None,
        projected_memory=None,
        return_attention_scores=False,
        use_causal_mask=True,
        training=None,
        x_mask=None,
    ):
        self._check_memory(memory, projected_memory)
        x, mask = self._check_x(x, x_mask if mask is None else mask)
        common = {
            "query_mask": mask,
            "return_attention_scores": return_attention_scores,
            "training": training,
        }

        def attend_to_itself(x):
            return self.self_attention(
                x,
                attention_mask=attention_mask,
                attention_bias=attention_bias,
                use_causal_mask=use_causal_mask,
                **given(positions=positions, cache=cache),
                **common,
            )

        def attend_to_memory(x):
            return self.cross_attention(
                x, memory, value_mask=memory_mask, memory=projected_memory, **common
            )

        x, more = self._sublayer(self.self_attention_residual, x, attend_to_itself, training)
        if self.attends_to_memory:
            residual = self.cross_attention_residual
            x, weights = self._sublayer(residual, x, attend_to_memory, training)
            more[1:1] = weights  # before the cache
        x = self._feed_forward(x, training)
        if mask is not None:
            x = carry_mask(x, mask=mask)
        return (x, *more) if more else x

    def _check_memory(self, memory, projected_memory=None):
        """Raises unless a memory is given exactly where one is attended to."""
        count = (memory is not None) + (projected_memory is not None)
        if self.attends_to_memory and count != 1:
            raise ValueError(
                "A block with `cross_attention` needs either `memory` [B, S, D] or "
                f"`projected_memory`. Received {'both' if count else 'neither'}."
            )
        if not self.attends_to_memory and count:
            raise ValueError("A block with `cross_attention=False` takes no memory. Received one.")

    def get_config(self):
        own = {
            "cross_attention": self.attends_to_memory,
            "cross_attention_options": serialize_options(self.cross_attention_options),
        }
        return {**super().get_config(), **own}

"""The decoder of the transformer: a stack of blocks, all at once or step by step."""

import keras
from keras import ops

from keras_attention import cache as caches
from keras_attention import checks, masks
from keras_attention.decoders.base import mean_over_heads
from keras_attention.layers.outputs import VaryingOutputs
from keras_attention.layers.residual import normalization_layer
from keras_attention.layers.transformer import TransformerDecoderBlock
from keras_attention.layers.transformer_block import given


@keras.saving.register_keras_serializable(package="keras_attention")
class TransformerDecoder(VaryingOutputs, keras.layers.Layer):
    """Stack of decoder blocks, section 3.1 of [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762).

        x = dropout(inputs + positions)
        x = block_n(x, memory)              n = 1 ... N
        output = norm(x)                    if the last block has `norm_first`, or `final_norm`

    The last normalisation is that of [Xiong et al., 2020](https://arxiv.org/abs/2002.04745), table
    1. Step by step (`precompute`, `start_state`, `step`) it gives the same numbers as all at once:
    a step keeps the keys and values of those before it.

    Args:
        blocks: list of `TransformerDecoderBlock`, all with cross-attention or all without (a
            causal language model).
        position_embedding: layer that adds positions to the inputs, called as
            `position_embedding(x, positions=...)`; None for blocks that know positions, or none.
        dropout: the fraction of its sum dropped in training.
        seed: integer seed of that dropout.
        final_norm: whether the output is normalised; by default if the last block has
            `norm_first`.
        **kwargs: arguments of `keras.layers.Layer`.

    Call arguments:
        inputs: `[B, T, D]`, the embedded tokens.
        memory: `[B, S, Dm]`, the encoder's outputs.
        memory_mask: `[B, S]`, True = may be attended; by default the Keras mask of `memory`.
        mask: `[B, T]`, True = a real step; by default the Keras mask of `inputs`.
        attention_mask, attention_bias: of all self-attentions, `[B, T, T]` or `[B, N, T, T]`.
        positions: `[T]` or `[B, T]`, integers; by default 0, 1, ...
        return_attention_scores: whether to return the attention weights.
        use_causal_mask: whether a step may attend only to itself and to earlier ones.
        training: whether to apply dropout.
        inputs_mask: where Keras hands the mask of `inputs`; use `mask`.

    Returns:
        The outputs `[B, T, D]`, or `(outputs, weights)`: a dictionary with "block_1/self"
        `[B, N, T, T]`, "block_1/cross" `[B, N, T, S]`, "block_2/self", ...

    Masking:
        Padding is attended to by no step. The output carries the mask of `inputs`.

    Raises:
        ValueError: if `blocks` are no decoder blocks, some with and some without
            cross-attention, or shapes do not fit.

    Example:

    >>> import numpy as np
    >>> decoder = TransformerDecoder([TransformerDecoderBlock(2, 32) for _ in range(3)])
    >>> x, weights = decoder(
    ...     np.ones((1, 5, 8)), np.ones((1, 7, 8)), return_attention_scores=True
    ... )
    >>> x.shape, weights["block_3/cross"].shape
    (TensorShape([1, 5, 8]), TensorShape([1, 2, 5, 7]))
    """

    def __init__(
        self, blocks, position_embedding=None, dropout=0.0, seed=None, final_norm=None, **kwargs
    ):
        super().__init__(autocast=False, **kwargs)
        self.supports_masking = True
        self.blocks = _check_blocks(blocks)
        self.position_embedding = position_embedding
        self.seed = seed
        self.dropout = checks.check_fraction("dropout", dropout)
        self._dropout = keras.layers.Dropout(dropout, seed=seed, dtype=self.dtype_policy)
        last = self.blocks[-1]
        self.final_norm = last.norm_first
        if final_norm is not None:
            self.final_norm = checks.check_flag("final_norm", final_norm)
        self.norm = None
        if self.final_norm:
            self.norm = normalization_layer(
                last.normalization, last.epsilon, dtype=self.dtype_policy, name="norm"
            )

    @property
    def keeps_beams(self):
        """Whether `step` takes `origins`: no block has a cache that drops old steps."""
        return not any(block.drops_old_steps for block in self.blocks)

    @property
    def attention(self):
        """The attention to the memory in the last block; None without one, or before building."""
        return self.blocks[-1].cross_attention

    def build(self, inputs_shape, memory_shape=None):
        shape = (inputs_shape[0], None, inputs_shape[-1])
        for block in self.blocks:
            if not block.built:
                block.build(shape, memory_shape)
        for layer in (self.position_embedding, self.norm):
            if layer is not None and not layer.built:
                layer.build(shape)
        self.built = True

    def call(
        self,
        inputs,
        memory=None,
        memory_mask=None,
        mask=None,
        attention_mask=None,
        attention_bias=None,
        positions=None,
        return_attention_scores=False,
        use_causal_mask=True,
        training=None,
        inputs_mask=None,
    ):
        mask = masks.as_mask(inputs_mask if mask is None else mask, "mask")
        x = self._embed(inputs, positions, training)
        weights = {}
        for number, block in enumerate(self.blocks, 1):
            results = block(
                x,
                mask=mask,
                attention_mask=attention_mask,
                attention_bias=attention_bias,
                **given(memory=memory, memory_mask=memory_mask, positions=positions),
                return_attention_scores=return_attention_scores,
                use_causal_mask=use_causal_mask,
                training=training,
            )
            if return_attention_scores:
                parts, (x,) = block.split_scores(results)
                weights.update({f"block_{number}/{name}": w for name, w in parts.items()})
            else:
                x = results
        x = x if self.norm is None else self.norm(x)
        return (x, weights) if return_attention_scores else x

    def precompute(self, memory, memory_mask=None):
        """Projects the memory once, for `step`.

        Args:
            memory: `[B, S, Dm]`.
            memory_mask: `[B, S]`, True = may be attended; by default the Keras mask of `memory`.

        Returns:
            A list with one tuple of tensors a block, the batch first.
        """
        self._check_built()
        return [block.precompute(memory, memory_mask) for block in self.blocks]

    def start_state(self, memory=None, initial_state=None, max_length=None, batch_size=None):
        """The state before the first step, for `step`.

        Args:
            memory: what `precompute` returned; None of a decoder without cross-attention.
            initial_state: a state to go on from; None or nothing in it for none.
            max_length: the most steps to come, a prompt included; where K beams share the state
                (`step` with `origins`) K for each step behind the prompt. All shapes of the state
                are fixed then, as XLA and loops on JAX need it; without it the state grows.
            batch_size: B, where there is no memory.

        Returns:
            A list with the cache of each block: dictionaries of tensors with the batch first, or
            scalars.
        """
        self._check_built()
        if initial_state:
            return self._check_state(initial_state)
        if batch_size is None:
            if memory is None:
                raise ValueError("`batch_size` must be given where there is no `memory`.")
            batch_size = ops.shape(memory[0][0])[0]
        return [block.start_cache(batch_size, max_length) for block in self.blocks]

    def step(
        self, inputs, state, memory=None, return_attention_scores=False, mask=None, origins=None
    ):
        """One step of inference, or several; the same numbers as the call gives for all at once.

        Args:
            inputs: `[B, D]`, the embedded token; or `[B, T, D]`, several (a prompt).
            state: as `start_state` or the last step gave it.
            memory: what `precompute` returned (or, projected anew each time, `[B, S, Dm]`).
            return_attention_scores: whether to return the weights `[B, S]` (of several steps
                `[B, T, S]`): the mean over the heads of the last block's cross-attention.
            mask: `[B]` or `[B, T]`, True = a real step. Padding, as in front of the shorter ones of
                several prompts, takes no position.
            origins: `[B, K, L]` integers, if the inputs `[B, K, D]` are the next step of K beams
                of each row, not K steps: whose earlier steps are the past of each, see
                `beam_search`. The state then keeps the steps of all beams, K a step.

        Returns:
            `(output, state)`, or `(output, weights, state)`; output `[B, D]` or `[B, T, D]`.
        """
        state = self._check_state(state)
        if memory is not None and not isinstance(memory, (tuple, list)):
            memory = self.precompute(memory)
        if return_attention_scores and self.attention is None:
            raise ValueError("`return_attention_scores`: there is no attention to a memory.")
        inputs = ops.copy(ops.convert_to_tensor(inputs))  # without a Keras mask
        sizes = inputs.shape[0], state[0]["next"].shape[0]
        if None not in sizes and sizes[0] != sizes[1]:
            raise ValueError(f"`state` is of {sizes[1]} samples, `inputs` of {sizes[0]}.")
        mask = masks.as_mask(mask, "mask")
        positions = None
        if origins is None:
            next_positions = _next_positions(state[0], inputs, mask)
        else:
            state = self._of_beams(state, inputs, origins)
            ones = ops.ones((1, inputs.shape[1]), "int32")
            next_positions = positions = state[0]["next"][:, None] * ones
        x = self._embed(inputs, next_positions, training=False)
        new_state, weights = [], []
        for number, (block, cache) in enumerate(zip(self.blocks, state, strict=True), 1):
            x, *weights, cache = block(
                x,
                **given(mask=mask, projected_memory=memory and memory[number - 1]),
                **given(positions=positions),
                cache=cache,
                return_attention_scores=return_attention_scores and number == len(self.blocks),
                training=False,
            )
            new_state.append(cache)
        x = x if self.norm is None else self.norm(x)
        if not return_attention_scores:
            return x, new_state
        return x, mean_over_heads(weights[-1], len(inputs.shape)), new_state

    def _of_beams(self, state, inputs, origins):
        """The state in which each beam sees its own past."""
        if not self.keeps_beams:
            raise ValueError("`origins`: a block with a `sliding_window` drops old steps.")
        if len(inputs.shape) != 3 or origins.shape[1] != inputs.shape[1]:
            raise ValueError(
                "`origins` [B, K, L] needs `inputs` [B, K, D], a step of K beams. Received shapes "
                f"{tuple(origins.shape)} and {tuple(inputs.shape)}."
            )
        visible = caches.own_past(state[0], origins)
        return [{**cache, "visible": visible} for cache in state]

    def _check_state(self, state):
        if not isinstance(state, (list, tuple)) or len(state) != len(self.blocks):
            got = f"{len(state)}" if isinstance(state, (list, tuple)) else type(state).__name__
            raise ValueError(
                "`state` must be what `start_state` or the last step returned: a list of "
                f"{len(self.blocks)} caches, one a block. Received: {got}."
            )
        for cache in state:
            caches.check_structure(cache)
        return list(state)

    def _check_built(self):
        if not self.built:
            raise ValueError(
                "TransformerDecoder must be built first: call it once, or call its "
                "`build(inputs_shape, memory_shape)`."
            )

    def _embed(self, inputs, positions, training):
        """The inputs with their positions."""
        x = checks.check_float(inputs, "inputs", self.compute_dtype)
        if self.position_embedding is not None:
            x = self.position_embedding(x, positions=positions)
        return self._dropout(x, training=training)

    def compute_output_spec(self, *args, **kwargs):
        # Infers from `call`, which also checks the arguments.
        return keras.Operation.compute_output_spec(self, *args, **kwargs)

    def compute_output_shape(self, inputs_shape, memory_shape=None):
        return tuple(inputs_shape)

    def get_config(self):
        serialize = keras.saving.serialize_keras_object
        own = {
            "blocks": [serialize(block) for block in self.blocks],
            "position_embedding": serialize(self.position_embedding),
            "dropout": self.dropout,
            "seed": self.seed,
            "final_norm": self.final_norm,
        }
        return {**super().get_config(), **own}

    @classmethod
    def from_config(cls, config, custom_objects=None):
        config = dict(config)
        for name in ("blocks", "position_embedding"):
            config[name] = keras.saving.deserialize_keras_object(config[name], custom_objects)
        return cls(**config)


def _next_positions(cache, inputs, mask):
    """Positions `[B]` or `[B, T]` of the steps behind those in the cache."""
    if len(inputs.shape) == 2:
        return cache["next"]
    return caches.next_positions(cache, mask, ops.shape(inputs)[1])[0]


def _check_blocks(blocks):
    blocks = list(blocks) if isinstance(blocks, (list, tuple)) else [blocks]
    if not blocks or not all(isinstance(block, TransformerDecoderBlock) for block in blocks):
        raise ValueError(
            "`blocks` must be a list of TransformerDecoderBlock, at least one. "
            f"Received: {blocks!r}."
        )
    if len({block.attends_to_memory for block in blocks}) > 1:
        raise ValueError(
            "`blocks` must all have cross-attention, or all have none. Received, in their order: "
            f"{[block.attends_to_memory for block in blocks]}."
        )
    return blocks

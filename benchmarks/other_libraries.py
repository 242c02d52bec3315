"""Contests against layers of PyTorch and keras-hub, for benchmarks/attention_layers.py.

Both are optional (`make benchmark-peers`): what is not installed takes no part.
"""

import importlib.util

import keras
import numpy as np
import tensorflow as tf
from contest import (
    Contest,
    dot_attention,
    model,
    random_inputs,
    random_tensors,
    symbolic,
)

import keras_attention

PEERS = {"torch": "PyTorch", "keras_hub": "keras-hub"}


def is_installed(name):
    return importlib.util.find_spec(name) is not None


def left_out():
    """A line on what did not take part, or nothing."""
    missing = [label for name, label in PEERS.items() if not is_installed(name)]
    return f"Not installed, so not compared: {', '.join(missing)}." if missing else ""


class InTorch:
    """A function `(query, value) -> context` of PyTorch tensors as a contestant.

    `weights` is what it has gradients for, beside its arguments.
    """

    def __init__(self, run, weights=()):
        self.run, self.weights = run, list(weights)

    def forward(self, query, value):
        import torch

        with torch.no_grad():
            return self.run(as_torch(query), as_torch(value))

    def forward_and_backward(self, query, value):
        import torch

        inputs = [as_torch(x).requires_grad_() for x in (query, value)]
        loss = self.run(*inputs).square().sum()
        return torch.autograd.grad(loss, [*inputs, *self.weights])


def as_torch(tensor):
    import torch

    return torch.from_numpy(np.array(tensor))


def torch_attention(batch, steps, causal=False, heads=8, size=64):
    from torch.nn.functional import scaled_dot_product_attention

    inputs = random_tensors(*[(batch, heads, steps, size)] * 2)

    def run(query, value):
        return scaled_dot_product_attention(query, value, value, is_causal=causal)

    name = "attention alone" + (", causal" if causal else "")
    shape = f"{batch} x {steps}, {heads} heads of {size}"
    ours = dot_attention(inputs, causal)
    return Contest(name, "torch scaled_dot_product_attention", shape, ours, InTorch(run), inputs)


def torch_multi_head(batch, steps, causal=False, heads=8, features=512):
    import torch

    inputs = random_inputs(batch, steps, steps, features)
    layer = keras_attention.MultiHeadAttention(heads, features // heads)
    query, value = symbolic(inputs)
    ours = model(query, value, layer(query, value, use_causal_mask=causal))
    peer = torch.nn.MultiheadAttention(features, heads, batch_first=True)
    kernels = [np.reshape(kernel, (features, features)).T for kernel in layer.get_weights()[::2]]
    with torch.no_grad():  # PyTorch keeps the kernels of query, key and value in one matrix
        peer.in_proj_weight.copy_(torch.from_numpy(np.concatenate(kernels[:3])))
        peer.out_proj.weight.copy_(torch.from_numpy(kernels[3].copy()))
    hidden = torch.nn.Transformer.generate_square_subsequent_mask(steps) if causal else None

    def run(query, value):
        return peer(query, value, value, need_weights=False, attn_mask=hidden, is_causal=causal)[0]

    shape = f"{batch} x {steps}, {heads} heads, {features} features"
    name = "MultiHeadAttention" + (", causal" if causal else "")
    theirs = InTorch(run, peer.parameters())
    return Contest(name, "torch MultiheadAttention", shape, ours, theirs, inputs)


def hub_decoder(batch, steps, heads=8, features=512, feedforward=2048):
    from keras_hub.layers import TransformerDecoder

    inputs = random_inputs(batch, steps, steps, features)
    blocks = [
        keras_attention.TransformerDecoderBlock(heads, feedforward, dropout=0.0),
        TransformerDecoder(feedforward, heads, dropout=0.0),
    ]
    models = []
    for block in blocks:
        query, value = symbolic(inputs)
        models.append(model(query, value, block(query, value)))
    for part in ("/self_attention/", "/cross_attention/", "/feed"):  # norms begin alike
        ours, theirs = (
            [w for w in block.weights if part in w.path and "norm" not in w.path]
            for block in blocks
        )
        for own, other in zip(ours, theirs, strict=True):
            other.assign(own)
    shape = f"{batch} x {steps}, {heads} heads, {features} features"
    return Contest(
        "TransformerDecoderBlock", "keras-hub TransformerDecoder", shape, *models, inputs
    )


class Step(keras.Model):
    """One step of attention to itself, with a cache of earlier steps."""

    def __init__(self, attend, cache):
        super().__init__()
        self.attend, self.cache = attend, cache

    def call(self, inputs, training=None):
        return self.attend(inputs[0], self.cache)[0]


def hub_step(batch, slots, heads=8, features=512):
    """Half of the slots are filled; the cache is written in the step."""
    from keras_hub.layers import CachedMultiHeadAttention

    size, filled = features // heads, slots // 2
    inputs = random_inputs(batch, 1, 1, features)
    (earlier,) = random_tensors((batch, filled, features))
    layer = keras_attention.MultiHeadAttention(heads, size)
    peer = CachedMultiHeadAttention(heads, size)
    peer.build((batch, None, features), (batch, None, features))

    def attend(steps, cache):
        return layer(steps, cache=cache, use_causal_mask=True)

    def attend_peer(steps, cache, start=filled):
        seen = tf.range(slots) <= start + tf.range(steps.shape[1])[:, None]
        seen = tf.broadcast_to(seen, (batch, *seen.shape))
        return peer(steps, steps, attention_mask=seen, cache=cache, cache_update_index=start)

    _, cache = attend(earlier, layer.start_cache(batch, slots))
    peer.set_weights(layer.get_weights())
    _, peer_cache = attend_peer(earlier, tf.zeros((batch, 2, slots, heads, size)), 0)
    shape = f"{batch} x 1, {slots} slots, {heads} heads, {features} features"
    steps = Step(attend, cache), Step(attend_peer, peer_cache)
    name, peer_name = (
        "MultiHeadAttention, a step with a cache",
        "keras-hub CachedMultiHeadAttention",
    )
    return Contest(name, peer_name, shape, *steps, inputs, backward=False)


def contests(quick):
    """The contests with those that are installed."""
    if is_installed("torch"):
        for causal in (False, True):
            yield lambda causal=causal: torch_attention(1, 16 if quick else 8192, causal)
        for batch, steps in ((2, 16),) if quick else ((8, 512), (2, 2048)):
            for causal in (False, True):
                yield lambda sizes=(batch, steps, causal): torch_multi_head(*sizes)
    if is_installed("keras_hub"):
        yield lambda: hub_decoder(2 if quick else 8, 16 if quick else 512)
        yield lambda: hub_step(2 if quick else 8, 16 if quick else 256)

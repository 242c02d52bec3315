"""Whole transformer models in float64 NumPy, put together from reference_transformer.py.

    embedding(y) = sqrt(D) E_y + positions     Vaswani et al. 2017, sections 3.4 and 3.5
    logits = E h                               section 3.4

Weights are a dictionary, see `transformer_models.model_weights`. Nothing here comes from the
package, from Keras or from TensorFlow.
"""

import math

import numpy as np
import reference as ref
import reference_positions as positions
import reference_transformer as blocks


def self_attention(position, bidirectional, window=None):
    """Attention of steps 0 ... T - 1 to themselves that knows their positions.

    Su et al. 2021, eq. 16: queries and keys of each head are rotated. Press et al. 2022 and
    Raffel et al. 2020: a bias of each head is added to the scores.
    """

    def attend(query, memory, weights, mask):
        query, (B, T, _) = ref.f64(query), np.shape(query)
        kernels = {name: ref.f64(kernel) for name, kernel in weights["kernels"].items()}
        H, N = kernels["query"].shape[2], kernels["query"].shape[1]
        group, steps = N // kernels["key"].shape[1], np.arange(T)
        bias = np.zeros((N, T, T))
        if position == "alibi":
            bias = positions.alibi(steps, steps, N)
        if position == "relative":
            table = weights["relative"]
            bias = positions.relative_bias(steps, steps, table, bidirectional=bidirectional)
        if window is not None:
            mask = mask & ref.window_mask(T, window=window)

        def part(name, b, head):
            biases = weights["biases"]
            x = ref.project(
                query[b], kernels[name][:, head], None if biases is None else biases[name][head]
            )
            if position == "rotary" and name != "value":
                x = positions.rotate(x, steps, positions.frequencies(H))
            return x

        output, scores = np.zeros(query.shape), np.zeros((B, N, T, T))
        for b in range(B):
            for n in range(N):
                parts = (
                    part("query", b, n),
                    part("key", b, n // group),
                    part("value", b, n // group),
                )
                context, scores[b, n] = ref.attend(*parts, ref.scaled_dot, mask[b], bias[n])
                output[b] += ref.project(context, kernels["output"][n])
            if weights["biases"] is not None:
                output[b] += ref.f64(weights["biases"]["output"])
        return output * scores.any(axis=(1, 3))[..., None], scores

    return attend


def embed(ids, table, position, learned=None):
    """sqrt(D) E_y, and the encoding of the positions where that is added."""
    table, T = ref.f64(table), np.shape(ids)[1]
    x = math.sqrt(table.shape[1]) * table[np.asarray(ids)]
    if position == "sinusoidal":
        x = x + positions.sinusoidal(np.arange(T), table.shape[1])
    if position == "learned":
        x = x + ref.f64(learned)[:T]
    return x


def logits(hidden, weights):
    """E h, or a linear layer, of steps `[..., D]`."""
    return ref.project(hidden, *weights["logits"])


def encoder(source, weights, activation, norm_first, position, window=None):
    """Memory `[B, S, D]` of ids `[B, S]`, 0 is padding."""
    x = embed(source, weights["source"], position, weights.get("encoder_positions"))
    real = np.asarray(source) != 0
    x, _ = blocks.stack(
        x,
        weights["encoder"],
        activation,
        norm_first,
        blocks.full_mask(real, real),
        norm=weights["encoder_norm"],
        own=self_attention(position, True, window),
    )
    return x


def decoder(
    target, weights, activation, norm_first, position, window=None, memory=None, source=None
):
    """Outputs `[B, T, D]` of ids `[B, T]`; with a memory, which `source` `[B, S]` was read for."""
    x = embed(target, weights["target"], position, weights.get("decoder_positions"))
    real = np.asarray(target) != 0
    x, _ = blocks.stack(
        x,
        weights["decoder"],
        activation,
        norm_first,
        blocks.full_mask(real, real, causal=True),
        memory,
        None if source is None else blocks.full_mask(real, np.asarray(source) != 0),
        weights["decoder_norm"],
        self_attention(position, False, window),
    )
    return x


def transformer(source, target, weights, *options):
    """Logits `[B, T, V]`."""
    memory = encoder(source, weights, *options)
    hidden = decoder(target, weights, *options, memory=memory, source=source)
    return logits(hidden, weights)


def language_model(ids, weights, *options):
    """Logits `[B, T, V]`."""
    return logits(decoder(ids, weights, *options), weights)


def classifier(source, weights, *options):
    """Logits `[B, C]`: the mean over real steps, 0 of a sample without any."""
    memory, rows = encoder(source, weights, *options), []
    for x, ids in zip(memory, np.asarray(source), strict=True):
        real = x[ids != 0]
        rows.append(real.sum(axis=0) / max(len(real), 1))
    return logits(np.array(rows), weights)

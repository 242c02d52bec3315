"""The transformer's equations in float64 NumPy: blocks and stacks, from the papers.

Nothing here comes from the package, from Keras or from TensorFlow.

- Vaswani et al. 2017, "Attention is all you need", https://arxiv.org/abs/1706.03762
- Xiong et al. 2020, "On layer normalization in the transformer architecture", table 1 (pre-norm),
  https://arxiv.org/abs/2002.04745
- Ba, Kiros, Hinton 2016, "Layer normalization", https://arxiv.org/abs/1607.06450
- Zhang, Sennrich 2019, "Root mean square layer normalization", https://arxiv.org/abs/1910.07467
- Hendrycks, Gimpel 2016, "Gaussian error linear units", https://arxiv.org/abs/1606.08415
- Shazeer 2020, "GLU variants improve transformer", https://arxiv.org/abs/2002.05202

Weights of a block are a dictionary: "self" and "cross" (each with "kernels" and "biases", as
`reference.multi_head_attention` takes them), "feed_forward", and the normalisations "self_norm",
"cross_norm", "feed_forward_norm" (each the arguments of `normalize`).
"""

import math

import numpy as np
from reference import causal_mask, f64, multi_head_attention, project, sigmoid

# Feed-forward network


def gelu(x):
    """Hendrycks and Gimpel: x Phi(x), Phi the distribution function of the normal distribution."""
    return np.vectorize(lambda v: v * 0.5 * (1.0 + math.erf(v / math.sqrt(2.0))))(x)


def silu(x):
    """Shazeer section 2: Swish_1(x) = x sigmoid(x)."""
    return x * sigmoid(x)


def relu(x):
    return np.maximum(x, 0.0)


PLAIN = {"relu": relu, "gelu": gelu, "silu": silu}
GATED = {"reglu": relu, "geglu": gelu, "swiglu": silu}


def feed_forward(x, activation, inner, outer, gate=None):
    """Vaswani eq. 2: max(0, x W_1 + b_1) W_2 + b_2; Shazeer eq. 6: (f(x W) * x V) W_2.

    inner, outer, gate: pairs of kernel and bias (None for no bias).
    """
    hidden = project(x, *inner)
    if activation in GATED:
        hidden = GATED[activation](project(x, *gate)) * hidden
    else:
        hidden = PLAIN[activation](hidden)
    return project(hidden, *outer)


# Normalisation


def normalize(x, gamma, beta=None, epsilon=1e-5):
    """Ba eq. 4 with a gain and a bias; without a bias, Zhang and Sennrich eq. 4."""
    x, gamma = f64(x), f64(gamma)
    out = np.zeros_like(x)
    for index in np.ndindex(*x.shape[:-1]):
        row = x[index]
        if beta is None:
            scale = math.sqrt(sum(v * v for v in row) / len(row) + epsilon)
            out[index] = row / scale * gamma
        else:
            mean = sum(row) / len(row)
            variance = sum((v - mean) ** 2 for v in row) / len(row)
            out[index] = (row - mean) / math.sqrt(variance + epsilon) * gamma + f64(beta)
    return out


def residual(x, sublayer, norm, norm_first):
    """Vaswani 3.1: LayerNorm(x + Sublayer(x)); Xiong, table 1: x + Sublayer(LayerNorm(x))."""
    if norm_first:
        return x + sublayer(normalize(x, **norm))
    return normalize(x + sublayer(x), **norm)


# Blocks: `mask [B, T, T]` and `memory_mask [B, T, S]` have the whole shape of the scores (or N)


def attention(query, memory, weights, mask):
    """Output and weights. A step that sees nothing has output 0, also where there is a bias."""
    output, scores = multi_head_attention(
        query, memory, memory, weights["kernels"], weights["biases"], mask
    )
    return output * scores.any(axis=(1, 3))[..., None], scores


def block(
    x, weights, activation, norm_first, mask=None, memory=None, memory_mask=None, own=attention
):
    """Encoder block, or with a memory decoder block: `(x [B, T, D], [weights of attentions])`.

    `own` is what computes the self-attention, which may know positions.
    """
    x, scores = f64(x), []

    def attend(part, memory, mask):
        def sublayer(query):
            # Self-attention reads what its query is made of: normalised where that is.
            keys = query if memory is None else memory
            function = own if part == "self" else attention
            output, found = function(query, keys, weights[part], mask)
            scores.append(found)
            return output

        return sublayer

    x = residual(x, attend("self", None, mask), weights["self_norm"], norm_first)
    if memory is not None:
        sublayer = attend("cross", memory, memory_mask)
        x = residual(x, sublayer, weights["cross_norm"], norm_first)
    x = residual(
        x,
        lambda x: feed_forward(x, activation, **weights["feed_forward"]),
        weights["feed_forward_norm"],
        norm_first,
    )
    return x, scores


def stack(
    x,
    blocks,
    activation,
    norm_first,
    mask=None,
    memory=None,
    memory_mask=None,
    norm=None,
    own=attention,
):
    """All blocks in turn, then, of pre-norm blocks, one more normalisation."""
    all_scores = []
    for weights in blocks:
        x, scores = block(x, weights, activation, norm_first, mask, memory, memory_mask, own)
        all_scores.append(scores)
    return (x if norm is None else normalize(x, **norm)), all_scores


def full_mask(query_mask, key_mask, causal=False):
    """`[B, T, S]` from the paddings `[B, T]` and `[B, S]`."""
    query_mask, key_mask = np.asarray(query_mask, bool), np.asarray(key_mask, bool)
    B, T, S = len(query_mask), query_mask.shape[1], key_mask.shape[1]
    mask = np.zeros((B, T, S), bool)
    later = causal_mask(T, S) if causal else np.ones((T, S), bool)
    for b in range(B):
        for t in range(T):
            for s in range(S):
                mask[b, t, s] = query_mask[b, t] and key_mask[b, s] and later[t, s]
    return mask

"""Attention layers, decoders and search for Keras.

Every attention here is score -> mask -> normalise -> weighted sum. The package by concept:

    masks          boolean masks, True = may attend: made and merged here and nowhere else
    scores         query [..., T, Dq], key [..., S, Dk] -> scores [..., T, S]
    normalizers    scores and mask -> attention weights
    attend         the four steps in one function
    checks         errors that name the argument
    products       matrix products that TensorFlow computes right
    layers         Keras layers on top: Bahdanau, Luong, scaled dot-product, multi-head
    decoders       recurrent decoders that attend to a memory
    loops          loops over time steps, in eager mode, graph and XLA
    search         output sequences from a step function, in the graph

Importing the package registers its classes, so that `keras.saving.load_model` finds them.
"""

__version__ = "0.1.0"

from keras_attention.attend import attend
from keras_attention.decoders.bahdanau import BahdanauDecoder
from keras_attention.decoders.luong import LuongDecoder
from keras_attention.layers.bahdanau import BahdanauAttention
from keras_attention.layers.luong import LuongAttention
from keras_attention.layers.multi_head import MultiHeadAttention
from keras_attention.layers.outputs import attention_scores_model
from keras_attention.layers.scaled_dot_product import ScaledDotProductAttention
from keras_attention.masks import (
    causal_mask,
    combine_masks,
    padding_mask,
    segment_mask,
    window_mask,
)
from keras_attention.normalizers import masked_softmax
from keras_attention.scores import (
    additive_score,
    concat_score,
    dot_score,
    general_score,
    scaled_dot_score,
)
from keras_attention.search import SearchResult, greedy_search

__all__ = [
    "BahdanauAttention",
    "LuongAttention",
    "ScaledDotProductAttention",
    "MultiHeadAttention",
    "BahdanauDecoder",
    "LuongDecoder",
    "greedy_search",
    "SearchResult",
    "attend",
    "attention_scores_model",
    "masked_softmax",
    "additive_score",
    "causal_mask",
    "combine_masks",
    "concat_score",
    "dot_score",
    "general_score",
    "padding_mask",
    "scaled_dot_score",
    "segment_mask",
    "window_mask",
]

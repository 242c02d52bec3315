"""Attention layers for Keras."""

__version__ = "0.1.0"

from keras_attention.attend import attend
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

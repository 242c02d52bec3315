"""Which mask blocks what, and where a mask was lost on the way to an attention layer."""

from keras_attention.explain.explanation import MaskExplanation
from keras_attention.explain.front import explain_mask

__all__ = ["MaskExplanation", "explain_mask"]

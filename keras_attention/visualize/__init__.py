"""Alignments as pictures, as pages for a browser, and as text: which source tokens each target
token attended to. Masks as pictures.

Takes arrays, and writes files.
"""

from keras_attention.visualize.labels import check_alignment
from keras_attention.visualize.mask_picture import plot_mask
from keras_attention.visualize.page import AttentionPage, attention_page
from keras_attention.visualize.picture import check_format, load_matplotlib, plot_alignment
from keras_attention.visualize.terminal import alignment_text

__all__ = [
    "AttentionPage",
    "alignment_text",
    "attention_page",
    "check_alignment",
    "check_format",
    "load_matplotlib",
    "plot_alignment",
    "plot_mask",
]

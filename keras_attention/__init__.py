"""Attention layers, decoders and search for Keras, and the seq2seq models around them.

Every attention here is score -> mask -> normalise -> weighted sum. The package by concept:

    positions      where steps stand: sinusoidal, rotary, ALiBi, relative bias
    masks          boolean masks, True = may attend: made and merged here and nowhere else
    scores         query [..., T, Dq], key [..., S, Dk] -> scores [..., T, S]
    normalizers    scores and mask -> attention weights: softmax, sparsemax, 1.5-entmax
    monotonic      weights that only move forward
    pairs          the masks and biases of a call, part by part
    blockwise      the four steps without all scores at once, for long sequences
    attend         the four steps in one function
    checks         errors that name the argument
    whole          files and folders that appear whole or not at all
    room           whether weights fit on the disk
    products       matrix products that TensorFlow computes right
    cache          keys and values of earlier steps, as plain values
    layers         Keras layers on top: Bahdanau, Luong, scaled dot-product, multi-head, the
                   blocks of the transformer
    decoders       decoders that attend to a memory: recurrent ones and the transformer's
    loops          loops over time steps, in eager mode, graph and XLA
    search         output sequences from a step function, in the graph: greedy, beam, sampling
    text           text -> ids -> text, in the graph
    explain        which mask blocks what, and where a mask was lost on the way
    models         whole models: seq2seq, transformer, causal language model, classifier
    distribution   training on several devices and processes
    export         trained models as SavedModels with text in and text out
    migrate        weights of Keras's layers, PyTorch, TensorFlow Addons, KerasHub -> our layers
    command        the command `keras-attention`: export, run, inspect, plot
    losses         masked cross-entropy, coverage, guided alignment
    schedules      learning rates that warm up
    averaging      the mean of the weights of the last epochs
    callbacks      what happens after each epoch: pictures of alignments, translations
    visualize      pictures of alignments; fonts that have the letters
    measures       numbers about alignments; links between words and their error rate

Importing the package registers its classes, so that `keras.saving.load_model` finds them.
"""

__version__ = "0.1.0"

from keras_attention.attend import attend
from keras_attention.averaging import AverageCheckpoints, average_weights
from keras_attention.callbacks import AttentionCallback, TranslationMetric
from keras_attention.decoders.bahdanau import BahdanauDecoder
from keras_attention.decoders.bridge import Bridge
from keras_attention.decoders.luong import LuongDecoder
from keras_attention.decoders.scheduled_sampling import InverseSigmoid, ScheduledSampling
from keras_attention.decoders.transformer import TransformerDecoder
from keras_attention.distribution.layouts import layout_map
from keras_attention.distribution.training import fit_distributed
from keras_attention.distribution.workers import is_chief
from keras_attention.explain import MaskExplanation, explain_mask
from keras_attention.export.litert_file import export_litert
from keras_attention.export.onnx_file import export_onnx
from keras_attention.export.saved_model import export_servable
from keras_attention.export.servable import load_servable
from keras_attention.layers.bahdanau import BahdanauAttention
from keras_attention.layers.feed_forward import FeedForward
from keras_attention.layers.history import Coverage, LocationFeatures
from keras_attention.layers.luong import LuongAttention
from keras_attention.layers.monotonic import MonotonicAlignment
from keras_attention.layers.multi_head import MultiHeadAttention
from keras_attention.layers.no_attention import NoAttention
from keras_attention.layers.outputs import attention_model, attention_scores_model
from keras_attention.layers.pooling import MaskedPooling
from keras_attention.layers.position_embedding import LearnedEmbedding, SinusoidalEmbedding
from keras_attention.layers.scaled_dot_product import ScaledDotProductAttention
from keras_attention.layers.sink import SinkSoftmax
from keras_attention.layers.token_embedding import TokenEmbedding
from keras_attention.layers.transformer import TransformerDecoderBlock, TransformerEncoderBlock
from keras_attention.links import alignment_error_rate, alignment_links, read_links
from keras_attention.losses import (
    CoverageLoss,
    DiagonalAlignmentLoss,
    GuidedAlignmentLoss,
    MaskedCrossEntropy,
)
from keras_attention.masks import (
    causal_mask,
    combine_masks,
    padding_mask,
    prefix_mask,
    segment_mask,
    window_mask,
)
from keras_attention.measures import (
    alignment_coverage,
    alignment_entropy,
    alignment_monotonicity,
)
from keras_attention.migrate.from_keras import attention_from_keras
from keras_attention.migrate.from_keras_hub import block_from_keras_hub
from keras_attention.migrate.from_tfa import attention_from_tfa, decoder_from_tfa
from keras_attention.migrate.from_torch import (
    attention_from_torch,
    decoder_block_from_torch,
    decoder_from_torch,
    encoder_block_from_torch,
    encoder_from_torch,
    transformer_from_torch,
)
from keras_attention.migrate.replace import replace_attention
from keras_attention.migrate.torch_model import load_transformer_from_torch
from keras_attention.models.batches import text_batches
from keras_attention.models.classifier import TextClassifier, text_classifier
from keras_attention.models.epochs import EpochCounter
from keras_attention.models.language_batches import language_batches
from keras_attention.models.language_model import CausalLM, causal_lm
from keras_attention.models.lora import enable_lora
from keras_attention.models.seq2seq import Seq2Seq, seq2seq
from keras_attention.models.transformer import Transformer, transformer
from keras_attention.normalizers import Softmax, entmax15, masked_softmax, sparsemax
from keras_attention.positions import ALiBi, RelativeBias, RotaryPosition
from keras_attention.schedules import InverseSquareRoot, WarmupCosine
from keras_attention.scores import (
    additive_score,
    concat_score,
    dot_score,
    general_score,
    location_score,
    scaled_dot_score,
    soft_cap,
)
from keras_attention.search import (
    BeamResult,
    SearchResult,
    beam_search,
    greedy_search,
    sample,
)
from keras_attention.text import (
    ByteTokenizer,
    CharacterTokenizer,
    SubwordTokenizer,
    WordTokenizer,
)
from keras_attention.visualize import alignment_text, attention_page, plot_alignment, plot_mask

__all__ = [
    "attend",
    "AttentionCallback",
    "TranslationMetric",
    "BahdanauDecoder",
    "Bridge",
    "LuongDecoder",
    "InverseSigmoid",
    "ScheduledSampling",
    "BahdanauAttention",
    "Coverage",
    "LocationFeatures",
    "LuongAttention",
    "MonotonicAlignment",
    "MultiHeadAttention",
    "NoAttention",
    "attention_model",
    "attention_scores_model",
    "ScaledDotProductAttention",
    "alignment_error_rate",
    "alignment_links",
    "read_links",
    "CoverageLoss",
    "DiagonalAlignmentLoss",
    "GuidedAlignmentLoss",
    "MaskedCrossEntropy",
    "causal_mask",
    "combine_masks",
    "padding_mask",
    "segment_mask",
    "window_mask",
    "alignment_coverage",
    "alignment_entropy",
    "alignment_monotonicity",
    "text_batches",
    "Seq2Seq",
    "seq2seq",
    "Softmax",
    "entmax15",
    "masked_softmax",
    "sparsemax",
    "additive_score",
    "concat_score",
    "dot_score",
    "general_score",
    "location_score",
    "scaled_dot_score",
    "BeamResult",
    "SearchResult",
    "beam_search",
    "greedy_search",
    "sample",
    "ByteTokenizer",
    "CharacterTokenizer",
    "SubwordTokenizer",
    "WordTokenizer",
    "alignment_text",
    "attention_page",
    "plot_alignment",
    "plot_mask",
    "MaskExplanation",
    "explain_mask",
    "AverageCheckpoints",
    "average_weights",
    "TransformerDecoder",
    "FeedForward",
    "MaskedPooling",
    "LearnedEmbedding",
    "SinusoidalEmbedding",
    "SinkSoftmax",
    "TokenEmbedding",
    "TransformerDecoderBlock",
    "TransformerEncoderBlock",
    "TextClassifier",
    "text_classifier",
    "language_batches",
    "CausalLM",
    "causal_lm",
    "EpochCounter",
    "enable_lora",
    "Transformer",
    "transformer",
    "ALiBi",
    "RelativeBias",
    "RotaryPosition",
    "InverseSquareRoot",
    "WarmupCosine",
    "prefix_mask",
    "soft_cap",
    "export_litert",
    "export_onnx",
    "export_servable",
    "load_servable",
    "attention_from_keras",
    "replace_attention",
    "block_from_keras_hub",
    "attention_from_tfa",
    "decoder_from_tfa",
    "attention_from_torch",
    "decoder_block_from_torch",
    "decoder_from_torch",
    "encoder_block_from_torch",
    "encoder_from_torch",
    "load_transformer_from_torch",
    "transformer_from_torch",
    "fit_distributed",
    "is_chief",
    "layout_map",
]

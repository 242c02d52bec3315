"""Configs and weights of other libraries' attention, carried over to the layers of this package.

weights         arrays by name, taken once each, their shapes checked
from_keras      keras.layers: MultiHeadAttention, GroupQueryAttention, Attention, ...
replace         a Functional model with this package's layers in place of Keras's
from_torch      torch.nn: MultiheadAttention, the encoder and decoder layers, Transformer
from_tfa        tfa.seq2seq: attention mechanisms and AttentionWrapper
from_keras_hub  keras_hub.layers: TransformerEncoder, TransformerDecoder
"""

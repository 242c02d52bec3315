"""Configs and weights of other libraries' attention, carried over to the layers of this package.

    weights         arrays by name, taken once each, their shapes checked
    from_keras      keras.layers: MultiHeadAttention, GroupQueryAttention, Attention, ...
    replace         a Functional model with this package's layers in place of Keras's
    from_torch      torch.nn: MultiheadAttention, the encoder and decoder layers, Transformer
    torch_blocks    their kernels turned round, heads on an axis
    torch_model     a `transformer` with the weights of a whole model of PyTorch
    from_tfa        tfa.seq2seq: attention mechanisms and AttentionWrapper
    tfa_variables   which variable is what, in a dictionary or a checkpoint
    from_keras_hub  keras_hub.layers: TransformerEncoder, TransformerDecoder

No other library is imported, except TensorFlow to read a checkpoint: they hand in names and arrays.
"""

"""Attention layers: `keras.layers.Layer` subclasses on top of `keras_attention.attend`."""

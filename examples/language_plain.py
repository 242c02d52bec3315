"""The language model written with keras.layers alone, to compare with."""

import keras
from keras import layers, ops


def plain_model(options, size):
    """A pre-norm decoder of the same layers, units, heads and dropouts as `causal_lm` makes.

    keras.layers has neither rotary positions nor logits from the embedding: positions are learned,
    one for each of the `options.length` places, and the logits have weights of their own.
    """
    units = options.units
    ids = keras.Input((None,), dtype="int32", name="ids")
    places = ops.cumsum(ops.ones_like(ids), axis=1) - 1
    x = layers.Embedding(size, units)(ids) + layers.Embedding(options.length, units)(places)
    x = layers.Dropout(options.dropout)(x)
    for _ in range(options.layers):
        normal = layers.LayerNormalization(epsilon=1e-5)(x)
        attention = layers.MultiHeadAttention(
            options.heads, units // options.heads, dropout=options.attention_dropout
        )
        seen = attention(normal, normal, use_causal_mask=True)
        x = x + layers.Dropout(options.dropout)(seen)
        hidden = layers.LayerNormalization(epsilon=1e-5)(x)
        hidden = layers.Dense(options.feedforward, activation="gelu")(hidden)
        hidden = layers.Dense(units)(layers.Dropout(options.dropout)(hidden))
        x = x + layers.Dropout(options.dropout)(hidden)
    x = layers.LayerNormalization(epsilon=1e-5)(x)
    return keras.Model(ids, layers.Dense(size, name="logits")(x), name="plain")

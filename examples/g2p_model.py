"""The pronunciation model: encoder over letters, attentional decoder over phones."""

import keras
import tensorflow as tf
from g2p_data import END, PADDING, START
from keras import ops

from keras_attention import (
    BahdanauAttention,
    BahdanauDecoder,
    LuongAttention,
    LuongDecoder,
    greedy_search,
)

MAX_PHONES = 100
ATTENTIONS = ("bahdanau", "dot", "general", "concat", "none")


def make_decoder(attention, units):
    """Returns the decoder layer; without attention a plain GRU."""
    if attention == "none":
        return keras.layers.GRU(units, return_sequences=True, name="decoder")
    cell = keras.layers.GRUCell(units)
    if attention == "bahdanau":
        return BahdanauDecoder(cell, BahdanauAttention(units), name="decoder")
    layer = LuongAttention(attention, units=units if attention == "concat" else None)
    return LuongDecoder(cell, layer, name="decoder")


def build_model(vocabulary, attention, recipe):
    """Returns a Functional model (letters `[B, S]`, phones `[B, T]`) -> logits `[B, T, V]`.

    `phones` starts with the start mark, so that step t predicts phone t from those before it.
    """
    units, layers = recipe.units, keras.layers
    letters = keras.Input([None], dtype="int32", name="letters")
    phones = keras.Input([None], dtype="int32", name="phones")

    embed_letters = layers.Embedding(
        vocabulary.letter_count, recipe.embedding, mask_zero=True, name="letter_embedding"
    )
    embed_phones = layers.Embedding(
        vocabulary.phone_count, recipe.embedding, mask_zero=True, name="phone_embedding"
    )
    gru = layers.GRU(units // 2, return_sequences=True, return_state=True)
    encoder = layers.Bidirectional(gru, name="encoder")
    memory, forward, backward = encoder(layers.Dropout(recipe.dropout)(embed_letters(letters)))
    memory = layers.Dropout(recipe.dropout, name="memory")(memory)
    last = layers.Concatenate()([forward, backward])
    state = layers.Dense(units, activation="tanh", name="initial_state")(last)

    embedded = layers.Dropout(recipe.dropout)(embed_phones(phones))
    decoder = make_decoder(attention, units)
    if attention == "none":
        hidden = decoder(embedded, initial_state=state)
    else:
        hidden = decoder(embedded, memory, initial_state=state)
    hidden = layers.Dropout(recipe.dropout)(hidden)
    logits = layers.Dense(vocabulary.phone_count, name="logits")(hidden)
    return keras.Model([letters, phones], logits, name=f"g2p_{attention}")


def compile_model(model, recipe, steps):
    """Adam with a short warm-up and a cosine decay to zero at the last of `steps`."""
    warm_up = steps // 20
    schedule = keras.optimizers.schedules.CosineDecay(
        recipe.learning_rate / 20,
        max(steps - warm_up, 1),
        warmup_target=recipe.learning_rate,
        warmup_steps=warm_up,
    )
    # The loss is the mean over the phones that the decoder's mask keeps: padding does not count.
    model.compile(
        optimizer=keras.optimizers.Adam(schedule, global_clipnorm=1.0),
        loss=keras.losses.CategoricalCrossentropy(
            from_logits=True, label_smoothing=recipe.label_smoothing
        ),
    )


class Transcriber:
    """Pronounces words with a trained model by greedy search, inside the graph.

    Takes letter ids `[B, S]`, returns the `SearchResult` of `greedy_search`.
    """

    def __init__(self, model):
        self.attends = isinstance(model.get_layer("decoder"), (BahdanauDecoder, LuongDecoder))
        names = ("initial_state", "memory") if self.attends else ("initial_state",)
        outputs = {name: model.get_layer(name).output for name in names}
        self.encoder = keras.Model(model.get_layer("letters").output, outputs)
        self.phone_vectors = model.get_layer("phone_embedding").embeddings
        self.decoder = model.get_layer("decoder")
        self.logits = model.get_layer("logits")
        ids = tf.TensorSpec([None, None], "int32", name="letters")
        self.search = tf.function(self.__call__, input_signature=[ids])

    def __call__(self, letters):
        encoded = self.encoder(letters, training=False)
        step = self._step_without_attention
        if self.attends:
            step = self._step_over(self.decoder.precompute(encoded["memory"], letters != PADDING))
        start = ops.full_like(letters[:, 0], START)
        return greedy_search(step, [encoded["initial_state"]], start, END, MAX_PHONES)

    def _step_over(self, memory):
        def step(tokens, state):
            output, weights, state = self.decoder.step(
                self._embed(tokens), state, memory, return_attention_scores=True
            )
            return self._phone_logits(output), weights, state

        return step

    def _step_without_attention(self, tokens, state):
        output, state = self.decoder.cell(self._embed(tokens), state)
        return self._phone_logits(output), state

    def _embed(self, tokens):
        return ops.take(self.phone_vectors, tokens, axis=0)

    def _phone_logits(self, output):
        """Logits of the end mark and the phones; padding and the start are no answers."""
        logits = self.logits(output)
        return ops.where(ops.arange(logits.shape[-1]) < END, -1e9, logits)

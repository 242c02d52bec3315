"""The pronunciation models: encoder over letters, attentional decoder over phones."""

import keras
import tensorflow as tf
from g2p_data import END, PADDING, START
from keras import ops

from keras_attention import (
    BahdanauAttention,
    BahdanauDecoder,
    LuongAttention,
    LuongDecoder,
    NoAttention,
    SearchResult,
    Transformer,
    beam_search,
    greedy_search,
)

MAX_PHONES = 100
LUONG = ("dot", "general", "concat", "location")
ATTENTIONS = ("bahdanau", *LUONG, "local-m", "local-p", "none")
LONGEST_WORD, WINDOW = 64, 4


def make_attention(name, units):
    """Returns the attention layer of that name."""
    if name == "none":
        return NoAttention()
    if name == "bahdanau":
        return BahdanauAttention(units)
    if name == "local-m":
        return LuongAttention("general", local="monotonic", window=WINDOW)
    if name == "local-p":
        return LuongAttention("general", local="predictive", window=WINDOW)
    options = {"concat": {"units": units}, "location": {"max_memory": LONGEST_WORD}}
    return LuongAttention(name, **options.get(name, {}))


def make_decoder(attention, units, input_feeding):
    """Returns the decoder layer; without attention the cell is all there is in it."""
    cell, layer = keras.layers.GRUCell(units), make_attention(attention, units)
    if attention in ("bahdanau", "none"):
        return BahdanauDecoder(cell, layer, name="decoder")
    return LuongDecoder(cell, layer, input_feeding=input_feeding, name="decoder")


def build_model(vocabulary, attention, recipe, input_feeding=False):
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
    hidden = make_decoder(attention, units, input_feeding)(embedded, memory, initial_state=state)
    hidden = layers.Dropout(recipe.dropout)(hidden)
    logits = layers.Dense(vocabulary.phone_count, name="logits")(hidden)
    return keras.Model([letters, phones], logits, name=f"g2p_{attention}")


def build_transformer(vocabulary, recipe):
    """Returns a model of the same inputs and outputs: `Transformer`, which can search by itself."""
    return Transformer(
        vocabulary.letter_count,
        vocabulary.phone_count,
        layers=recipe.layers,
        units=recipe.units,
        num_heads=recipe.heads,
        feedforward_size=recipe.feedforward,
        dropout=recipe.dropout,
        attention_dropout=recipe.attention_dropout,
        name="g2p_transformer",
    )


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
        jit_compile=False,  # words come in many lengths, each of which would be compiled
    )


class Transcriber:
    """Pronounces words with a trained model, inside the graph.

    Takes letter ids `[B, S]`, returns the `SearchResult` of `greedy_search`, or for a beam the
    best of each word in the same form.
    """

    def __init__(self, model, beam_width=1):
        self.model, self.beam_width = model, beam_width
        if not isinstance(model, Transformer):
            self._take_apart(model)
        ids = tf.TensorSpec([None, None], "int32", name="letters")
        self.search = tf.function(self.__call__, input_signature=[ids])

    def _take_apart(self, model):
        outputs = [model.get_layer(name).output for name in ("memory", "initial_state")]
        self.encoder = keras.Model(model.get_layer("letters").output, outputs)
        self.phone_vectors = model.get_layer("phone_embedding").embeddings
        self.decoder, self.logits = model.get_layer("decoder"), model.get_layer("logits")

    def __call__(self, letters):
        found = self._search(letters)
        if self.beam_width == 1:
            return found
        fields = (found.ids, found.lengths, found.scores, found.attention_scores)
        return SearchResult(*(None if x is None else x[:, 0] for x in fields))

    def _search(self, letters):
        if isinstance(self.model, Transformer):
            options = {"max_length": MAX_PHONES, "grow_cache": True}
            return self.model.search(letters, self.beam_width, **options)
        memory, state = self.encoder(letters, training=False)
        memory = self.decoder.precompute(memory, letters != PADDING)
        state = self.decoder.start_state(memory, state)
        start = ops.full_like(letters[:, 0], START)
        # Padding and the start are no answers.
        options = {"memory": memory, "forbidden_tokens": (PADDING, START)}
        if self.beam_width == 1:
            return greedy_search(self._step, state, start, END, MAX_PHONES, **options)
        return beam_search(
            self._step, state, start, END, MAX_PHONES, beam_width=self.beam_width, **options
        )

    def _step(self, tokens, state, memory):
        embedded = ops.take(self.phone_vectors, tokens, axis=0)
        attends = not isinstance(self.decoder.attention, NoAttention)
        output, *weights_and_state = self.decoder.step(
            embedded, state, memory, return_attention_scores=attends
        )
        return self.logits(output), *weights_and_state

"""Training and testing of a pronunciation model."""

import keras
import numpy as np
from g2p_data import padded, training_batches
from g2p_metrics import error_rates
from g2p_model import Transcriber, compile_model

TEST_BATCH = 256


def pronounce(transcriber, vocabulary, words):
    """Returns the phones of each word, and the scores, in batches of words of like lengths."""
    ids, lengths = padded(vocabulary.letter_ids(words))
    predictions, scores = [None] * len(ids), np.zeros(len(ids))
    order = np.argsort(lengths, kind="stable")
    for rows in np.split(order, range(TEST_BATCH, len(order), TEST_BATCH)):
        found = transcriber.search(ids[rows, : max(1, lengths[rows].max())])
        for row, phones, length in zip(rows, found.ids.numpy(), found.lengths.numpy(), strict=True):
            predictions[row] = vocabulary.phones_of(phones[:length])
        scores[rows] = found.scores
    return predictions, scores


def test(transcriber, vocabulary, lexicon):
    """Returns the error rates on the words of a lexicon."""
    predictions, _ = pronounce(transcriber, vocabulary, list(lexicon))
    return error_rates(predictions, list(lexicon.values()))


class DevErrorRates(keras.callbacks.Callback):
    """Adds the error rates on the dev words to the logs of each epoch."""

    def __init__(self, vocabulary, lexicon, transcriber):
        super().__init__()
        self.vocabulary, self.lexicon, self.transcriber = vocabulary, lexicon, transcriber

    def on_epoch_end(self, epoch, logs):
        rates = test(self.transcriber, self.vocabulary, self.lexicon)
        logs["dev_phoneme_error"], logs["dev_word_error"] = rates.phoneme, rates.word


def best_epoch(epochs):
    """A callback that keeps the weights of the epoch with the fewest dev errors."""
    return keras.callbacks.EarlyStopping(
        "dev_word_error", mode="min", patience=epochs, restore_best_weights=True
    )


def train(model, recipe, vocabulary, parts, seed):
    """Trains with teacher forcing and keeps the weights of the epoch with the fewest dev errors.

    Returns: Keras's history.
    """
    batches = training_batches(parts.train, vocabulary, recipe.batch_size, seed)
    compile_model(model, recipe, len(batches) * recipe.epochs)
    dev = DevErrorRates(vocabulary, parts.dev, Transcriber(model))
    callbacks = [dev, best_epoch(recipe.epochs)]
    return model.fit(batches, epochs=recipe.epochs, callbacks=callbacks, shuffle=False)

"""Export of a pronunciation model: text in, text out, without Keras or Python code of ours."""

import keras
import tensorflow as tf
from g2p_data import RESERVED_PHONES
from g2p_model import Transcriber
from g2p_text import graph_letter_ids, graph_split_letters


def export_saved_model(model, vocabulary, folder):
    """Writes a SavedModel with one signature, `serving_default`.

    In: `text [B]`, one word each; the empty word has the empty pronunciation.
    Out, a dict:
        pronunciation: `[B]` strings, phones separated by spaces.
        score: `[B]` log-probability of the pronunciation.
        tokens: `[B, L]` phone ids, the end mark included, then 0.
        attention: `[B, L, T]` weights of each phone's step over the letters (if the model attends).
        letters: `[B, T]` strings, what the attention weights belong to (jamo for Hangul).
    """
    archive = keras.export.ExportArchive()
    archive.track(model)
    archive.add_endpoint(
        "serving_default",
        text_to_pronunciation(model, vocabulary),
        input_signature=[tf.TensorSpec([None], "string", name="text")],
    )
    archive.write_out(str(folder), verbose=False)


def text_to_pronunciation(model, vocabulary):
    """Returns the function that is exported; both vocabularies are constants of its graph."""
    transcriber = Transcriber(model)
    names = tf.constant([""] * RESERVED_PHONES + list(vocabulary.phones))

    def pronounce(text):
        points = graph_split_letters(text, vocabulary.letters)
        ids, letter_counts = graph_letter_ids(points, vocabulary.letters)
        found = transcriber(ids)
        empty = letter_counts == 0
        lengths = tf.where(empty, 0, found.lengths)
        tokens = tf.where(empty[:, None], 0, found.ids)
        longest = tf.maximum(tf.reduce_max(lengths), 0)  # of an empty batch it is negative
        steps = tf.minimum(longest + 1, tf.shape(tokens)[1])
        phones = tf.RaggedTensor.from_tensor(tf.gather(names, tokens), lengths)
        outputs = {
            "pronunciation": tf.strings.reduce_join(phones, axis=-1, separator=" "),
            "score": tf.where(empty, 0.0, found.scores),
            "tokens": tokens[:, :steps],
            "letters": _letter_names(points, tf.shape(ids)[1]),
        }
        if found.attention_scores is not None:
            outputs["attention"] = found.attention_scores[:, :steps]
        return outputs

    return pronounce


def _letter_names(points, width):
    names = points.with_values(tf.strings.unicode_encode(points.flat_values[:, None], "UTF-8"))
    return names.to_tensor(
        default_value="", shape=tf.stack([points.nrows(out_type="int32"), width])
    )

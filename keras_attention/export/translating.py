"""The endpoints of models that translate: `Seq2Seq` and `Transformer`."""

import tensorflow as tf
from keras import ops

from keras_attention.export.endpoints import (
    Endpoint,
    checked_ids,
    checked_length,
    input_size,
    silenced,
    spec,
    tokens_and_scores,
)
from keras_attention.export.steps import step_endpoints
from keras_attention.text import END, PAD


def translating_endpoints(model, settings):
    """Endpoints of a model with an `inference` counterpart.

        serving_default  text [B] -> translation [B], score [B], tokens [B, L], target_tokens
                         [B, L], source_tokens [B, S], attention [B, L, S]
        beam             text [B] -> translation, score [B, K], tokens [B, K, L]
        serve_tokens     source [B, S] -> tokens [B, L], score [B]
        encode, step     see `step_endpoints`
        forward          source [B, S], target [B, T] -> logits [B, T, V]

    Args:
        model: a `Seq2Seq` or `Transformer`. Without tokenizers it has no `serving_default`, and
            `beam` takes source ids.
        settings: `Settings`.

    Returns:
        A list of `Endpoint`.
    """
    inference = model.inference
    limit, size = settings.max_input_length, model.output_shape[-1]

    def read(source):
        return checked_ids("source", checked_length(source, limit), input_size(model))

    def search(ids, beam_width=1, alignments=False, **options):
        return inference.search(ids, settings.max_length, beam_width, True, alignments, **options)

    def best(ids, alignments=False):
        return search(ids, alignments=alignments, **settings.search_options)

    def beam_search(ids):
        return search(ids, settings.beam_width, **settings.beam_options)

    def beam_of_ids(source):
        return tokens_and_scores(beam_search(read(source)))

    def encode(source):
        memory, state = inference.encode(source)
        return {"memory": memory, "state": state}

    def step(token, state, memory):
        token = checked_ids("token", token, size)
        logits, *weights, state = inference.step(token, state, memory)
        attention = {"attention": weights[0]} if weights else {}
        return {"logits": logits, **attention, "state": state}

    def forward(source, target):
        target = checked_ids("target", target, size)
        return {"logits": model([read(source), target], training=False)}

    source, text = spec("source"), spec("text", "string", (None,))
    asked_for_ids = [
        Endpoint("serve_tokens", lambda source: tokens_and_scores(best(read(source))), (source,)),
        *step_endpoints(encode, step, "source", read),
        Endpoint("forward", forward, (source, spec("target"))),
    ]
    if inference.source is None or inference.target is None:
        return [*asked_for_ids, Endpoint("beam", beam_of_ids, (source,))]
    return [
        Endpoint("serving_default", _text_to_text(inference, best, limit, details=True), (text,)),
        Endpoint("beam", _text_to_text(inference, beam_search, limit), (text,)),
        *asked_for_ids,
    ]


def _read(inference, text, limit):
    """Ids `[B, S]` of texts, and which of them have nothing to read: their output is empty."""
    ids = checked_length(inference.source.encode(text, add_end=True), limit)
    return ids, ops.logical_not(ops.any(ids > END, axis=1))


def _text_to_text(inference, search, limit, details=False):
    """A function of texts; with details it tells the tokens by name, and their attention."""

    def serve(text):
        source, empty = _read(inference, text, limit)
        found = search(source, alignments=True) if details else search(source)
        outputs = tokens_and_scores(found, empty)
        tokens = outputs["tokens"]
        outputs["translation"] = inference.target.decode(tokens)
        if details:
            outputs["target_tokens"] = _names(inference.target, tokens)
            outputs["source_tokens"] = _names(inference.source, source)
        if found.attention_scores is not None:
            steps = tf.shape(tokens)[1]
            outputs["attention"] = silenced(found.attention_scores, empty)[:, :steps]
        return outputs

    return serve


def _names(tokenizer, ids):
    """The text of each token, "" for padding."""
    return tf.where(ids == PAD, "", tokenizer.tokens_of(ids))

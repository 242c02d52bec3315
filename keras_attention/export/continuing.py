"""The endpoints of models that continue a text: `CausalLM`."""

import tensorflow as tf

from keras_attention.export.endpoints import (
    Endpoint,
    checked_ids,
    checked_length,
    spec,
    tokens_and_scores,
)
from keras_attention.export.steps import step_endpoints
from keras_attention.text import PAD, START


def continuing_endpoints(model, settings):
    """Endpoints of a language model.

        serving_default  text [B] -> generated [B] (the prompt and what follows), score [B],
                         tokens [B, L] (what follows)
        beam             text [B] -> generated, score [B, K], tokens [B, K, L]
        serve_tokens     ids [B, T] (padded on the left) -> tokens [B, L], score [B]
        encode, step     see `step_endpoints`
        forward          ids [B, T] -> logits [B, T, V]

    Args:
        model: a `CausalLM`. Without a tokenizer it has no `serving_default`, and `beam` takes ids.
        settings: `Settings`.

    Returns:
        A list of `Endpoint`.
    """
    limit, size = settings.max_input_length, model.output_shape[-1]
    # A prompt and what follows it: as much as a search reads itself.
    longest = None if limit is None else limit + settings.max_length - 1

    def read(ids, limit=limit):
        return checked_ids("ids", checked_length(ids, limit), size)

    def search(ids):
        return model.search(ids, settings.max_length, grow_cache=True, **settings.search_options)

    def beam_search(ids):
        options = {"beam_width": settings.beam_width, **settings.beam_options}
        return model.search(ids, settings.max_length, grow_cache=True, **options)

    def encode(ids):
        token, state = model.start(ids)
        return {"token": token, "state": state}

    def step(token, state, _):
        logits, state = model.step(checked_ids("token", token, size), state)
        return {"logits": logits, "state": state}

    def forward(ids):
        return {"logits": model(read(ids, longest), training=False)}

    def serve(text, search=search):
        prompt = left_padded(checked_length(model.tokenizer.encode(text), limit))
        outputs = tokens_and_scores(search(prompt))
        tokens = outputs["tokens"]
        if tokens.shape.rank == 3:
            shape = tf.concat([tf.shape(tokens)[:2], tf.shape(prompt)[1:]], 0)
            prompt = tf.broadcast_to(prompt[:, None], shape)
        return {"generated": model.tokenizer.decode(tf.concat([prompt, tokens], -1)), **outputs}

    ids, text = spec("ids"), spec("text", "string", (None,))
    asked_for_ids = [
        Endpoint("serve_tokens", lambda ids: tokens_and_scores(search(read(ids))), (ids,)),
        *step_endpoints(encode, step, "ids", read),
        Endpoint("forward", forward, (ids,)),
    ]
    if model.tokenizer is None:
        return [
            *asked_for_ids,
            Endpoint("beam", lambda ids: tokens_and_scores(beam_search(read(ids))), (ids,)),
        ]
    return [
        Endpoint("serving_default", lambda text: serve(text), (text,)),
        Endpoint("beam", lambda text: serve(text, beam_search), (text,)),
        *asked_for_ids,
    ]


def left_padded(ids):
    """Ids `[B, T]` that are padded behind each text with the padding in front of it.

    Args:
        ids: int32 ids; a row of padding alone becomes one START.

    Returns:
        Ids `[B, T]`.
    """
    lengths = tf.reduce_sum(tf.cast(ids != PAD, "int32"), 1)
    first = tf.where(lengths == 0, START, ids[:, 0])
    ids = tf.concat([first[:, None], ids[:, 1:]], 1)
    size = tf.shape(ids)[1]
    place = tf.range(size) - (size - tf.maximum(lengths, 1))[:, None]
    return tf.gather(ids, place % size, batch_dims=1)  # the padding is what goes round

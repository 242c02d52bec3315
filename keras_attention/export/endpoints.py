"""What a servable can be asked: one function of named tensors for each signature."""

from typing import Any, NamedTuple

import keras
from keras import ops

from keras_attention.checks import check_positive
from keras_attention.models.language_model import CausalLM
from keras_attention.models.searches import SAMPLING, choose_search
from keras_attention.models.translator import Translator


class Endpoint(NamedTuple):
    """One signature of a SavedModel.

    Attributes:
        name: its name.
        function: takes the tensors of `inputs` in their order, returns a dictionary of tensors,
            each with the batch first, e.g. `[B, L]`.
        inputs: tuple of `tf.TensorSpec` with names.
    """

    name: str
    function: Any
    inputs: tuple


class Settings(NamedTuple):
    """How a servable searches.

    Attributes:
        max_length: L, the most tokens of an output.
        max_input_length: S, the most tokens of an input; None for any number.
        beam_width: K of the endpoint `beam`, whose outputs are `[B, K]`.
        search_options: dictionary of options of the other endpoints.
        beam_options: the same of `beam`.
    """

    max_length: int
    max_input_length: Any
    beam_width: int
    search_options: dict
    beam_options: dict


def settings_for(
    model, max_length, max_input_length, beam_width, search_options=None, beam_options=None
):
    """Checked settings for a model, what is None replaced by what fits it.

    Args:
        model: a `Seq2Seq`, `Transformer` or `CausalLM`.
        max_length, max_input_length, beam_width, search_options, beam_options: as of
            `export_servable`.

    Returns:
        `Settings`; the ids `[B, L]` and `[B, S]` of the model fit its positions.

    Raises:
        ValueError: for another model, or one that was quantised in a way its config can not tell,
            a number out of range, or an option that a search lacks.
    """
    positions = _positions(model)
    model.get_config()  # raises here what would be raised after minutes of writing
    for name, number in (("max_length", max_length), ("max_input_length", max_input_length)):
        if number is not None:
            check_positive(name, number)
            if number >= 2**31:
                raise ValueError(f"`{name}` must be below 2**31. Received: {number}.")
            if positions is not None and number > positions:
                raise ValueError(
                    f"`{name}` must be at most {positions}, the number of positions that the "
                    f"model has. Received: {number}."
                )
    if check_positive("beam_width", beam_width) < 2:
        raise ValueError(f"`beam_width` must be at least 2. Received: {beam_width}.")
    search_options, beam_options = dict(search_options or {}), dict(beam_options or {})
    choose_search(1, search_options)
    choose_search(beam_width, beam_options)
    if "num_results" in {**search_options, **beam_options}:
        raise ValueError("`num_results` is not for an export: `beam` gives all of its results.")
    continues = isinstance(model, CausalLM)
    if max_length is None:
        max_length = 128 if positions is None else min(128, positions // (2 if continues else 1))
    if max_input_length is None and positions is not None:
        max_input_length = positions - (max_length - 1 if continues else 0)
    if continues and positions is not None and max_input_length + max_length - 1 > positions:
        raise ValueError(
            f"`max_input_length` = {max_input_length} and `max_length` = {max_length} need "
            f"{max_input_length + max_length - 1} positions. The model has {positions}."
        )
    beam_options["num_results"] = beam_width
    if set(SAMPLING) & set(search_options) and search_options.get("seed") is None:
        search_options["seed"] = keras.random.SeedGenerator()  # each call draws anew
    return Settings(max_length, max_input_length, beam_width, search_options, beam_options)


def _positions(model):
    """The number of positions that a model has, None for any number."""
    if isinstance(model, CausalLM):
        return model.get_config()["max_length"]
    if isinstance(getattr(model, "inference", None), Translator):
        return model.inference.max_positions
    raise ValueError(
        "`model` must be a `Seq2Seq`, `Transformer` or `CausalLM` of keras_attention. "
        f"Received: {type(model).__name__}. (`keras.models.clone_model` makes a plain model of "
        "them; `from_config` and `set_weights` a copy that can be exported.)"
    )


def input_size(model):
    """The number of ids that inputs `[B, S]` of a model may have."""
    if isinstance(model, CausalLM):
        return model.output_shape[-1]
    tokenizer = model.inference.source
    return model.get_config()["source"] if tokenizer is None else tokenizer.size


def checked_length(ids, limit):
    """Ids `[B, S]`, for which the graph raises an error if S is beyond the limit.

    Args:
        ids: int32 ids, padded with 0.
        limit: the largest S, or None.

    Returns:
        The ids.
    """
    if limit is None:
        return ids
    import tensorflow as tf

    return _unless(
        tf.shape(ids)[1] > limit,
        f"An input has too many tokens for this model: at most {limit} are possible.",
        ids,
    )


def checked_ids(name, ids, size):
    """Ids `[B, S]` or `[B]`, for which the graph raises an error if the model can not read them.

    Args:
        name: of the endpoint's input, for the message.
        ids: int32 ids, padded with 0.
        size: how many ids there are.

    Returns:
        The ids.
    """
    import tensorflow as tf

    if ids.shape.rank > 1:
        message = f"`{name}` must have at least one step. Received: none."
        ids = _unless(tf.equal(tf.shape(ids)[1], 0), message, ids)
    # (A lookup itself takes negative ids, and on a GPU all others.)
    beyond = tf.reduce_any((ids < 0) | (ids >= size))
    message = f"`{name}` must be of ids in the range [0, {size}). Received: one beyond it."
    return _unless(beyond, message, ids)


def _unless(wrong, message, ids):
    """Ids behind an assertion. Clients cut its message at the first closing bracket."""
    import tensorflow as tf

    with tf.control_dependencies([tf.debugging.Assert(tf.logical_not(wrong), [message])]):
        return tf.identity(ids)


def tokens_and_scores(found, empty=None):
    """What every endpoint that searches gives: tokens up to the end of the longest, and scores.

    Args:
        found: a `SearchResult` or `BeamResult`, ids `[B, L]` or `[B, K, L]`.
        empty: `[B]`, True for inputs with nothing to read, whose output is empty; or None.

    Returns:
        A dictionary of "tokens" and "score".
    """
    import tensorflow as tf

    ids, lengths, scores = found.ids, found.lengths, found.scores
    if empty is not None:
        ids, lengths, scores = (silenced(x, empty) for x in (ids, lengths, scores))
    longest = tf.maximum(tf.reduce_max(lengths), 0)  # of an empty batch it is negative
    steps = tf.minimum(longest + 1, tf.shape(ids)[-1])
    return {"tokens": ids[..., :steps], "score": scores}


def spec(name, dtype="int32", shape=(None, None)):
    """A `tf.TensorSpec` for ids `[B, S]`, or of another dtype and shape."""
    import tensorflow as tf

    return tf.TensorSpec(shape, dtype, name)


def silenced(x, empty):
    """`x` `[B, ...]` with 0 in the rows that are empty."""
    shape = (*ops.shape(empty), *(1,) * (len(x.shape) - 1))
    return ops.where(ops.reshape(empty, shape), ops.zeros((), x.dtype), x)

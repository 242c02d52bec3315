"""How models search: the function that options belong to, compiled once for each set of them."""

import inspect
import json

import keras
import numpy as np
from keras import ops

from keras_attention.search import beam_search, greedy_search, sample

# What a model tells a search by itself.
GIVEN = {"step", "state", "start_tokens", "end_token", "pad_token"}
GIVEN |= {"max_length", "beam_width", "memory", "memory_mask", "reorder_state"}
# A loop in which a cache grows is faster than one that reads empty slots, but TensorFlow's alone.
GROW_CACHE = keras.backend.backend() == "tensorflow"
SAMPLING = ("temperature", "top_k", "top_p", "seed")


def choose_search(beam_width, options):
    """The search that options belong to.

    Args:
        beam_width: K, the number of hypotheses followed, the axis N of `[B, N, L]`.
        options: dictionary of arguments of the search.

    Returns:
        `greedy_search`, `sample` or `beam_search`.

    Raises:
        ValueError: if options are unknown, or of another search.
    """
    sampling = [name for name in SAMPLING if name in options]
    if beam_width > 1 and sampling:
        raise ValueError(
            f"`beam_width` does not go with sampling ({', '.join(sampling)}). "
            f"Received: {beam_width}."
        )
    several = beam_width > 1 or "num_results" in options
    function = sample if sampling else beam_search if several else greedy_search
    known = [name for name in inspect.signature(function).parameters if name not in GIVEN]
    for name in options:
        if name not in known:
            raise ValueError(
                f"`{name}` is no option of `{function.__name__}`, which is chosen by "
                f"`beam_width` = {beam_width}. Its options: {', '.join(known)}."
            )
    return function


class CompiledSearches:
    """Searches as compiled functions of ids `[B, S]`, made once for each set of options.

    Args:
        model: the model whose variables the searches read.
    """

    def __init__(self, model):
        self._model, self._made = model, {}

    def __len__(self):
        return len(self._made)

    def forget(self):
        """Forgets all of them, as the model `[B, S]` -> `[B, L]` computes something else now."""
        self._made.clear()

    def get(self, search, shape, parts, options, jit_compile=False):
        """`search` compiled for ids of this shape.

        Args:
            search: function of int32 ids `[B, S]`.
            shape: what is known of `[B, S]`.
            parts: list of numbers that, with the options, tell one search from another.
            options: dictionary of the options in it.
            jit_compile: whether XLA compiles it; the shape is known then.

        Returns:
            The function.
        """
        draws_on = isinstance(options.get("seed"), keras.random.SeedGenerator)
        unseeded = options.get("seed") is None and any(name in options for name in SAMPLING)
        backend = keras.backend.backend()
        # (What JAX has compiled would draw the same each time.)
        if backend == "torch" or (backend == "jax" and (draws_on or unseeded)):
            return lambda ids: search(ops.convert_to_tensor(ids))
        if backend == "jax":
            compiled = self._compiled_by_jax(search)
        else:
            compiled = _compiled_by_tensorflow(search, shape, jit_compile)
        if draws_on:
            return compiled  # the next call draws on from the generator's state
        key = json.dumps([shape, jit_compile, parts, sorted(options.items())], default=_plain)
        return self._made.setdefault(key, compiled)

    def _compiled_by_jax(self, search):
        """The variables are its arguments, as `jax.jit` would make constants of them."""
        import jax

        @jax.jit
        def compiled(values, ids):
            current = list(zip(self._model.variables, values, strict=True))
            with keras.StatelessScope(state_mapping=current):
                return search(ids)

        return lambda ids: compiled(
            [variable.value for variable in self._model.variables], ops.convert_to_tensor(ids)
        )

    def find(self, search, ids, shape, parts, options, jit_compile):
        """What the search finds for ids `[B, S]`, as a compiled function.

        Args:
            search, parts, options, jit_compile: as of `get`.
            ids: the ids.
            shape: what is to be known of theirs without `jit_compile`.

        Returns:
            A result of B rows.
        """
        rows = _padded_rows(ids) if jit_compile else ids
        shape = rows.shape if jit_compile else shape
        return first_rows(self.get(search, shape, parts, options, jit_compile)(rows), len(ids))


def _compiled_by_tensorflow(search, shape, jit_compile):
    import tensorflow as tf

    # (Without autograph, errors arrive as they were raised.)
    ids = tf.TensorSpec(shape, "int32")
    return tf.function(
        search, input_signature=[ids], autograph=False, jit_compile=jit_compile or None
    )


def _padded_rows(ids):
    """Ids `[B, S]` with the last row again until B is a power of two: XLA compiles few shapes."""
    count = 1 << (len(ids) - 1).bit_length()
    return np.pad(ids, [(0, count - len(ids)), (0, 0)], "edge")


def first_rows(found, count):
    """What a search found for the first `count` rows."""
    return type(found)(*(None if x is None else x[:count] for x in found))


def _plain(value):
    """An option as something JSON can hold, with all that is in it."""
    return value.tolist() if hasattr(value, "tolist") else np.asarray(value).tolist()

"""How the weights of our layers are split over devices, for `keras.distribution` on JAX."""

import keras

from keras_attention.checks import check_flag

ATTENTION = "(self|cross|multi_head)_attention[^/]*"
KEYS = ("key", "value")


def layout_map(mesh, axis="model", split_keys=True):
    """How `keras.distribution.ModelParallel` is to split the weights of transformers, on JAX.

        query, key, value, gate  [D, N, H]   over the heads N
        attention_output         [N, H, D]   over the heads N
        feed-forward             [D, F], [F, D]   over the hidden units F
        embeddings, logits       [V, D], [D, V]   over the features D

    So each device computes its own heads and hidden units, and the parts of the two sums are added,
    as in [Shoeybi et al., 2019](https://arxiv.org/abs/1909.08053), section 3. What is not listed,
    e.g. normalisation and recurrent layers, is on each device as a whole. The rules are for the
    paths of variables as our models, blocks and layers name them; add others for layers with names
    of your own: `layouts["encoder/mine/kernel"] = (None, "model")`.

    Args:
        mesh: a `keras.distribution.DeviceMesh`.
        axis: the name of the mesh's axis to split over; its size must divide `num_heads`.
        split_keys: whether to split keys and values, too. With `num_key_value_heads` that are no
            multiple of the size of the axis, each device needs all of them: False.

    Returns:
        A `keras.distribution.LayoutMap` from the paths of weights, such as `[D, N, H]`, to the axis
        that is split; for `ModelParallel(layout_map=...)`, which is set before the model is made.

    Raises:
        ValueError: on another backend than JAX (on TensorFlow `keras.distribution` silently does
            nothing), or if `mesh` is no mesh or has no such axis.

    Example, on JAX with 8 devices: 2 parts of each batch, weights in 4

        mesh = keras.distribution.DeviceMesh((2, 4), ("batch", "model"))
        parallel = keras.distribution.ModelParallel(layout_map=layout_map(mesh))
        keras.distribution.set_distribution(parallel)
        model = transformer(20, 30, num_heads=4)
    """
    backend = keras.backend.backend()
    if backend != "jax":
        raise ValueError(
            "`layout_map` needs the JAX backend: on another one `keras.distribution` does nothing, "
            "and says nothing. Set KERAS_BACKEND=jax, or train on TensorFlow with a "
            "`tf.distribute` strategy and `fit_distributed`, which copies the model to each "
            f"device. Received: the {backend} backend."
        )
    if not isinstance(mesh, keras.distribution.DeviceMesh):
        raise ValueError(f"`mesh` must be a `keras.distribution.DeviceMesh`. Received: {mesh!r}.")
    if axis not in mesh.axis_names:
        names = ", ".join(map(repr, mesh.axis_names))
        raise ValueError(f"`axis` must be one of the mesh's, {names}. Received: {axis!r}.")
    check_flag("split_keys", split_keys)
    layouts = keras.distribution.LayoutMap(mesh)
    for path, layout in split_weights(axis, split_keys).items():
        layouts[f"(.*/)?{path}"] = layout
    return layouts


def split_weights(axis, split_keys=True):
    """The layout of each weight that is split, by a pattern of the end of its path.

    Args:
        axis: the name to put at the axis that is split, of weights `[D, N, H]` and so on.
        split_keys: whether keys and values are split.

    Returns:
        A dictionary of tuples with a name or None for each axis.
    """
    heads = "|".join(("query", "gate", *(KEYS if split_keys else ())))
    dense = {"kernel": (None, axis), "bias": (axis,)}
    return {
        f"{ATTENTION}/({heads})/kernel": (None, axis, None),
        f"{ATTENTION}/({heads})/bias": (axis, None),
        f"{ATTENTION}/attention_output/kernel": (axis, None, None),
        f"{ATTENTION}/relative_bias[^/]*/weight": (None, axis),
        **{f"feed_forward[^/]*/(inner|gate)/{name}": layout for name, layout in dense.items()},
        "feed_forward[^/]*/outer/kernel": (axis, None),
        "[^/]*embedding[^/]*/embeddings": (None, axis),
        "logits/kernel": (axis, None),
    }

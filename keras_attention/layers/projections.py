"""How the layers make their projections: settings in one place, a seed of its own for each."""

import keras


class ProjectionSettings:
    """Initializers, regularizers and constraints that a layer gives to all its projections.

    Args:
        kernel_initializer, bias_initializer, kernel_regularizer, bias_regularizer,
        kernel_constraint, bias_constraint: as in `keras.layers.Dense`. No tensors are involved:
            `[Din, Dout]` kernels and `[Dout]` biases are made by the sub-layers.

    Returns:
        An object whose `config()` goes into the layer's config and whose `arguments(index)` go
        into the constructor of sub-layer number `index`.

    Raises:
        ValueError: for an unknown name.

    Example:

    >>> settings = ProjectionSettings(kernel_initializer="he_normal")
    >>> type(settings.arguments(0)["kernel_initializer"]).__name__
    'HeNormal'
    """

    def __init__(
        self,
        kernel_initializer="glorot_uniform",
        bias_initializer="zeros",
        kernel_regularizer=None,
        bias_regularizer=None,
        kernel_constraint=None,
        bias_constraint=None,
    ):
        self.initializers = {
            "kernel_initializer": keras.initializers.get(kernel_initializer),
            "bias_initializer": keras.initializers.get(bias_initializer),
        }
        self.regularizers = {
            "kernel_regularizer": keras.regularizers.get(kernel_regularizer),
            "bias_regularizer": keras.regularizers.get(bias_regularizer),
        }
        self.constraints = {
            "kernel_constraint": keras.constraints.get(kernel_constraint),
            "bias_constraint": keras.constraints.get(bias_constraint),
        }

    def arguments(self, index):
        """Constructor arguments of sub-layer number `index`."""
        own = {name: own_initializer(x, index) for name, x in self.initializers.items()}
        return {**own, **self.regularizers, **self.constraints}

    def dense(self, index, units, use_bias, **kwargs):
        """Sub-layer number `index`: a `keras.layers.Dense` from `[..., Din]` to `[..., units]`."""
        return keras.layers.Dense(units, use_bias=use_bias, **self.arguments(index), **kwargs)

    def add_kernel(self, layer, index, shape, name):
        """Adds to `layer` a weight of its own, as projection number `index`."""
        arguments = self.arguments(index)
        return layer.add_weight(
            name=name,
            shape=shape,
            initializer=arguments["kernel_initializer"],
            regularizer=arguments["kernel_regularizer"],
            constraint=arguments["kernel_constraint"],
        )

    def config(self):
        """The settings, serialized."""
        parts = (
            (keras.initializers.serialize, self.initializers),
            (keras.regularizers.serialize, self.regularizers),
            (keras.constraints.serialize, self.constraints),
        )
        return {
            name: serialize(x) if x is not None else None
            for serialize, group in parts
            for name, x in group.items()
        }


def own_initializer(initializer, index):
    """A copy of `initializer` with a seed of its own.

    An initializer with a fixed seed gives equal values to kernels of equal shape `[Din, Dout]`:
    query, key and value would start out the same.

    Args:
        initializer: an initializer, or any callable `(shape, dtype) -> values`.
        index: number of the sub-layer; index 0 keeps the seed as it is.

    Returns:
        An initializer.
    """
    if not isinstance(initializer, keras.initializers.Initializer):
        return initializer
    config = initializer.get_config()
    if isinstance(config.get("seed"), int):
        config["seed"] = (config["seed"] + 1_000_003 * index) % 2**31
    return type(initializer).from_config(config)


def project_steps(dense, steps):
    """Applies a `keras.layers.Dense` to `[B, T, D]`.

    Args:
        dense: the layer.
        steps: `[B, T, D]`.

    Returns:
        `[B, T, units]`.
    """
    # A single step as a matrix: cheaper, and the gradient of the product of three axes with two
    # cannot be compiled by XLA inside of a loop when the batch is of unknown size.
    if steps.shape[1] == 1:
        return dense(steps[:, 0])[:, None]
    return dense(steps)

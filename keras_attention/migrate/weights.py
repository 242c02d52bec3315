"""Arrays by name, out of which a layer takes its weights: each once, in the expected shape."""

import numpy as np


class Weights:
    """The arrays of another library by their names there.

    Args:
        arrays: a dictionary from names to arrays `[...]` (NumPy, or what converts to it; tensors
            of PyTorch too).
        argument: what error messages call the dictionary.
        prefix: only names that begin so count, and are called by the rest.
        called: a dictionary from names to what error messages call them.

    Returns:
        An object that hands arrays out by `take` and knows which ones it did.

    Raises:
        ValueError: if `arrays` is no dictionary, or no name begins with `prefix`.

    Example:

    >>> weights = Weights({"self_attn.bias": np.zeros(3)}, prefix="self_attn.")
    >>> weights.take("bias", (3,)).shape
    (3,)
    """

    def __init__(self, arrays, argument="weights", prefix="", called=None):
        if not hasattr(arrays, "items"):
            raise ValueError(
                f"`{argument}` must be a dictionary from names to arrays. "
                f"Received: {type(arrays).__name__}."
            )
        self._arrays, self._argument, self._prefix = dict(arrays), argument, prefix
        self._called, self._taken = called or {}, set()
        if not self.names():
            raise ValueError(
                f"`{argument}` has no name that begins with {prefix!r}. It has: {self._known('')}."
            )

    def part(self, prefix):
        """The weights below a further prefix; what they hand out counts here, too."""
        part = object.__new__(Weights)
        part.__dict__ = {**self.__dict__, "_prefix": self._prefix + prefix}
        return part

    def names(self):
        """The names below the prefix, without it."""
        found = [name for name in self._arrays if name.startswith(self._prefix)]
        return [name[len(self._prefix) :] for name in found]

    def __contains__(self, name):
        return self._prefix + name in self._arrays

    def shape(self, name, rank):
        """The shape of an array of so many axes; a ValueError where there is none."""
        return self._find(name, (None,) * rank).shape

    def take(self, name, shape):
        """The array of that name.

        Args:
            name: its name below the prefix.
            shape: the shape that it must have; None for an axis of any size.

        Returns:
            A NumPy array.

        Raises:
            ValueError: if there is none, or its shape is another.
        """
        array = self._find(name, shape)
        self._taken.add(self._prefix + name)
        return array

    def called(self, name):
        """What error messages call the array of a name."""
        return self._quoted(self._prefix + name)

    def check_all_taken(self):
        """Raises a ValueError that lists the arrays below the prefix that nobody took."""
        left = [self._prefix + name for name in self.names()]
        left = [name for name in left if name not in self._taken]
        if left:
            shapes = [
                f"{self._quoted(name)} {_written(as_array(name, self._arrays[name]).shape)}"
                for name in left
            ]
            raise ValueError(
                f"`{self._argument}` has more than the layer takes: {', '.join(shapes)}."
            )

    def _find(self, name, shape):
        name = self._prefix + name
        if name not in self._arrays:
            raise ValueError(
                f"`{self._argument}` has no {self._quoted(name)}, an array of shape "
                f"{_written(shape)}. It has: {self._known(self._prefix)}."
            )
        array = as_array(name, self._arrays[name])
        fits = len(array.shape) == len(shape) and all(
            wanted in (None, size) for size, wanted in zip(array.shape, shape, strict=True)
        )
        if not fits:
            raise ValueError(
                f"{self._quoted(name)} in `{self._argument}` must have shape {_written(shape)}. "
                f"Received shape {_written(array.shape)}."
            )
        return array

    def _quoted(self, name):
        return repr(self._called.get(name, name))

    def _known(self, prefix):
        names = sorted(name for name in self._arrays if name.startswith(prefix)) or sorted(
            self._arrays
        )
        listed = ", ".join(map(self._quoted, names[:20]))
        return f"{listed}, and {len(names) - 20} more" if len(names) > 20 else listed or "nothing"


def as_array(name, x):
    """A NumPy array of what was handed in as `[...]`: an array, a number, a variable or a tensor.

    Raises:
        ValueError: if it does not hold numbers.
    """
    if hasattr(x, "detach"):  # PyTorch, whose bfloat16 NumPy does not know
        x = x.detach().cpu().float()
    array = np.asarray(x)
    if array.dtype == object or array.dtype.kind in "OSU":
        raise ValueError(f"{name!r} must be an array of numbers. Received: {type(x).__name__}.")
    return array


def check_divides(num_heads, size, name):
    """Raises unless the heads divide the features `[..., size]` of the array called `name`."""
    if isinstance(num_heads, bool) or not isinstance(num_heads, int) or num_heads < 1:
        raise ValueError(f"`num_heads` must be a positive integer. Received: {num_heads!r}.")
    if size % num_heads:
        raise ValueError(
            f"`num_heads` must divide the {size} features of {name!r}. Received: {num_heads}."
        )


def _written(shape):
    """A shape with "any" for an axis of any size."""
    return "(" + ", ".join("any" if size is None else str(size) for size in shape) + ")"

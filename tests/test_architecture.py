"""The shape of the code: who imports whom, what is documented, how long a module may be.

Each rule is a function from source text to a list of complaints. The package has to give none;
a small bad sample has to give one, which shows that the rule can fail.
"""

import ast
import inspect
import re
from pathlib import Path

import pytest

import keras_attention

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "keras_attention"
MAX_LINES = 350

# A part may import the parts to its left and those it shares a place with.
ORDER = [
    {"checks", "loops", "products", "masks", "scores", "normalizers", "monotonic", "positions"}
    | {"cache", "pairs", "blockwise", "fused", "whole", "room"},
    {"attend"},
    {"layers"},
    {"decoders"},
    {"models", "callbacks", "explain"},
    {"export", "migrate"},
    {"command", "__main__"},
]
BASE, ABOVE_ATTEND = ORDER[0], set.union(*ORDER[2:])
# These take plain tensors, arrays, texts or functions, and must be usable without the layers.
INDEPENDENT = {"search", "visualize", "fonts", "measures", "links", "losses", "text"}
INDEPENDENT |= {"schedules", "averaging", "distribution"}
PRIVATE = ("keras.src", "tensorflow.python", "tf.python")


def python_files(*folders):
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def name_of(path):
    """`keras_attention/layers/pooling.py` is `layers.pooling`; the package itself is the empty."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def package_modules():
    return {name_of(path): path.read_text("utf-8") for path in python_files("keras_attention")}


def part(module):
    return module.partition(".")[0]


def imported_names(source, module, is_package=False):
    """Dotted names that `source` imports, the relative ones resolved against `module`."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = [node.module] if node.module else []
            if node.level:
                home = ["keras_attention", *filter(None, module.split("."))]
                base = home[: len(home) - node.level + is_package] + base
            yield from (".".join([*base, alias.name]) for alias in node.names)


def imported_parts(sources):
    """For each part of the package, the other parts that it imports."""
    parts = {part(module) for module in sources}
    graph = {name: set() for name in parts}
    for module, source in sources.items():
        if module == "":  # The package itself shows everything.
            continue
        is_package = any(other.startswith(module + ".") for other in sources)
        for name in imported_names(source, module, is_package):
            first, _, rest = name.partition(".")
            if first == "keras_attention" and rest != "__version__":  # the root defines that
                target = part(rest)
                graph[part(module)].add(target if target in parts else "")
    return {name: targets - {name} for name, targets in graph.items()}


def reachable(graph, start):
    found, todo = set(), [start]
    while todo:
        for target in graph.get(todo.pop(), ()):
            if target not in found:
                found.add(target)
                todo.append(target)
    return found


def direction_complaints(sources):
    graph = imported_parts(sources)
    place = {name: index for index, names in enumerate(ORDER) for name in names}
    for name, targets in sorted(graph.items()):
        if "" in targets:
            yield f"{name} imports the package root: import from the module that defines the name"
        if name in reachable(graph, name):
            yield f"{name} imports itself in a circle"
        for target in sorted(targets):
            if place.get(target, -1) > place.get(name, len(ORDER)):
                yield f"{name} imports {target}, which is built on top of it"
        if name in INDEPENDENT:
            for target in sorted(reachable(graph, name) & ABOVE_ATTEND):
                yield f"{name} imports {target}, but must be usable without the layers"


def private_complaints(source, module=""):
    names = list(imported_names(source, module))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute):
            names.append(ast.unparse(node))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names.append(node.value)  # importlib.import_module("keras.src.layers")
    for name in sorted(set(names)):
        if any(name == private or name.startswith(private + ".") for private in PRIVATE):
            yield f"{name} is private"


def documentation_complaints(name, thing):
    """What the docstring of a public class or function lacks."""
    text = vars(thing).get("__doc__") if inspect.isclass(thing) else thing.__doc__
    if not text:
        yield f"{name} has no docstring"
        return
    if inspect.isclass(thing) and issubclass(thing, tuple):
        return  # A named result: its fields are described where it is returned.
    if not re.search(r"`\[[^`\]]*\]`", text):
        yield f"{name} names no shape such as `[B, T, D]`"
    if inspect.isclass(thing):
        for section in ("Args:", "Returns:", "Raises:", "Example"):
            if section not in text:
                yield f"{name} has no section {section}"


def size_complaints(sources):
    for name, source in sources.items():
        lines = len(source.splitlines())
        if lines >= MAX_LINES:
            yield f"{name} has {lines} lines: find the concept that hides in it"
        if name.rpartition(".")[2] == "utils":
            yield f"{name} is named after nothing: name the concept"


def public_things():
    for name in keras_attention.__all__:
        thing = getattr(keras_attention, name)
        if inspect.isclass(thing) or callable(thing):
            yield name, thing


def test_imports_point_one_way():
    assert list(direction_complaints(package_modules())) == []


@pytest.mark.parametrize(
    ("sources", "complaint"),
    [
        ({"masks": "from keras_attention.attend import attend", "attend": ""}, "masks imports"),
        ({"masks": "from .attend import attend", "attend": ""}, "masks imports"),
        ({"masks": "from . import attend", "attend": ""}, "masks imports"),
        ({"blockwise": "import keras_attention.attend", "attend": ""}, "blockwise imports"),
        ({"attend": "def f():\n    from .layers import x", "layers": ""}, "attend imports layers"),
        (
            {"layers": "", "layers.luong": "from ..decoders import loop", "decoders": ""},
            "layers imports decoders",
        ),
        (
            {"decoders": "from ..models import x", "decoders.loop": "", "models": ""},
            "decoders imports models",
        ),
        ({"layers": "from keras_attention import attend"}, "imports the package root"),
        ({"models": "from .export import x", "export": ""}, "models imports export"),
        ({"search": "from .layers import x", "layers": ""}, "search imports layers"),
        (
            {"losses": "from .text import x", "text": "from .layers import y", "layers": ""},
            "losses imports layers",
        ),
        ({"masks": "from .scores import x", "scores": "from .masks import y"}, "circle"),
    ],
)
def test_a_wrong_import_is_noticed(sources, complaint):
    assert any(complaint in line for line in direction_complaints(sources))


def test_right_imports_raise_no_complaint():
    sources = {
        "masks": "import keras\nfrom keras import ops",
        "attend": "from .masks import combine_masks\nfrom keras_attention import scores",
        "scores": "",
        "layers": "from .luong import LuongAttention",
        "layers.luong": "from ..attend import attend\nfrom .base import x",
        "layers.base": "from keras_attention.attend import attend",
        "search": "from .masks import padding_mask",
        "": "from .layers import LuongAttention",
    }
    assert list(direction_complaints(sources)) == []


def test_every_part_has_a_place_in_the_map():
    """A part that nobody listed would be free to import anything."""
    parts = {part(name) for name in package_modules()} - {""}
    assert BASE <= parts, "the listed names are no longer those of the files"
    unknown = parts - set.union(*ORDER) - INDEPENDENT
    assert not unknown, f"give these a place in ORDER: {sorted(unknown)}"


def test_no_private_imports():
    for path in python_files("keras_attention", "examples", "benchmarks"):
        assert list(private_complaints(path.read_text("utf-8"))) == [], path


@pytest.mark.parametrize(
    "source",
    [
        "import keras.src",
        "from keras.src.layers import Layer",
        "from keras import src",
        "from tensorflow.python.ops import while_v2",
        "import tensorflow.python as p",
        "import tensorflow as tf\ntf.python.ops.x()",
        "import keras\nkeras.src.backend.y",
        "import importlib\nimportlib.import_module('keras.src.utils')",
    ],
)
def test_a_private_import_is_noticed(source):
    assert list(private_complaints(source))


def test_public_imports_raise_no_complaint():
    source = "import keras\nimport tensorflow as tf\nfrom keras import ops\nkeras.srcs.x\ntf.io"
    assert list(private_complaints(source)) == []


@pytest.mark.parametrize("name", keras_attention.__all__)
def test_public_name_is_documented(name):
    thing = getattr(keras_attention, name)
    if name == "__version__" or inspect.ismodule(thing):
        assert thing if name == "__version__" else thing.__doc__
    else:
        assert list(documentation_complaints(name, thing)) == []


def test_missing_documentation_is_noticed():
    class Base:
        """Takes `[B, T, D]`. Args: Returns: Raises: Example:"""

    class Bare(Base):
        pass

    class NoShape(Base):
        """Args: Returns: Raises: Example: masks[0]"""

    class NoRaises(Base):
        """Takes `[B, T, D]`. Args: Returns: Example:"""

    def bare():
        pass

    def no_shape():
        """Sums."""

    assert list(documentation_complaints("Base", Base)) == []
    for thing in (Bare, NoShape, NoRaises, bare, no_shape):
        assert len(list(documentation_complaints("thing", thing))) == 1, thing


def test_modules_are_short_and_named_after_a_concept():
    assert list(size_complaints(package_modules())) == []


def test_a_long_or_vague_module_is_noticed():
    assert list(size_complaints({"layers.luong": "pass\n" * MAX_LINES}))
    assert list(size_complaints({"layers.utils": ""}))
    assert list(size_complaints({"layers.luong": "pass\n" * (MAX_LINES - 1)})) == []

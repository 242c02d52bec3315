"""The directive `reference`, which documents public names, and links from code to them.

A block of it has a name a line: `attend`, or, of what is not public but inherited from,
`layers.base.AttentionLayer`.
"""

import functools
import importlib
import inspect
import re
from pathlib import Path

from docstrings import to_markdown
from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.util.docutils import SphinxDirective

PACKAGE = "keras_attention"
# What Keras calls; the class says what they do.
OF_KERAS = {"build", "call", "get_config", "from_config", "build_from_config", "get_build_config"}
PAGE = Path(__file__).resolve().parents[1] / "reference.md"
CODE = re.compile(r"(?:\w+=)?(?:ka\.|keras_attention\.)?(\w+)(?:\(.*\))?$", re.S)


def find(name):
    """The object of a name, and the module that the page says it is in."""
    module, _, last = name.rpartition(".")
    module = f"{PACKAGE}.{module}" if module else PACKAGE
    return getattr(importlib.import_module(module), last), module


class Shown:
    """A default value that shows as a name."""

    def __init__(self, text):
        self.text = text

    def __repr__(self):
        return self.text


def shown(default):
    """A default value as the page shows it: functions by their names, marks without one as dots."""
    if callable(default) and default is not inspect.Parameter.empty:
        return Shown(default.__name__)
    return Shown("...") if type(default) is object else default


def signature(thing, skip_first=False):
    """The parameters without annotations."""
    parameters = list(inspect.signature(thing).parameters.values())[skip_first:]
    return str(
        inspect.Signature(
            [x.replace(annotation=x.empty, default=shown(x.default)) for x in parameters]
        )
    )


def methods(cls):
    """Documented methods of a class and of its bases in this package: (name, kind, function)."""
    found = {}
    for base in cls.__mro__:
        if not base.__module__.startswith(PACKAGE):
            continue
        for name, member in vars(base).items():
            if name.startswith("_") or name in OF_KERAS or name in found:
                continue
            function = getattr(member, "__func__", member)
            if isinstance(member, property) and member.__doc__:
                found[name] = ("property", member)
            elif inspect.isfunction(function) and function.__doc__:
                kinds = {classmethod: "classmethod", staticmethod: "staticmethod"}
                found[name] = (kinds.get(type(member), "method"), function)
    return [(name, *member) for name, member in sorted(found.items())]


def method(name, kind, function):
    if kind == "property":
        head = name
    else:
        head = name + signature(function, skip_first=kind != "staticmethod")
    return f":::{{py:{kind}}} {head}\n\n{to_markdown(function.__doc__)}\n:::"


def entry(name):
    """What a page says about a name, as Markdown."""
    thing, module = find(name)
    title = name.rpartition(".")[2]
    parts = [to_markdown(inspect.getdoc(thing))]
    if inspect.isclass(thing):
        parts += [method(*each) for each in methods(thing)]
    kind = "class" if inspect.isclass(thing) else "function"
    head = f"::::{{py:{kind}}} {title}{signature(thing)}\n:module: {module}\n"
    return "\n\n".join([head, *parts, "::::"])


class Reference(SphinxDirective):
    """Documents the names in its content, in their order."""

    has_content = True

    def run(self):
        names = [line.strip() for line in self.content if line.strip()]
        return [node for name in names for node in self.parse_text_to_nodes(entry(name))]


@functools.cache
def listed():
    """The names that the reference documents, by what code calls them."""
    blocks = re.findall(r"^```\{reference\}\n(.*?)^```$", PAGE.read_text("utf-8"), re.S | re.M)
    names = [name for block in blocks for name in block.split()]
    return {name.rpartition(".")[2]: f"{PACKAGE}.{name}" for name in names}


def link_code(app, doctree):
    """Makes code that is a documented name, or a call of one, a link to the reference."""
    for literal in list(doctree.findall(nodes.literal)):
        found = CODE.match(literal.astext())
        if not found or found.group(1) not in listed():
            continue
        if isinstance(literal.parent, (nodes.reference, nodes.title, pending_xref)):
            continue
        link = pending_xref(
            "",
            refdomain="py",
            reftype="obj",
            reftarget=listed()[found.group(1)],
            refdoc=app.env.docname,
        )
        literal.replace_self(link)
        link += literal


def setup(app):
    app.add_directive("reference", Reference)
    app.connect("doctree-read", link_code)
    return {"parallel_read_safe": True}

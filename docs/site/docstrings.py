"""Docstrings with sections (`Args:`, `Returns:`, ...) as Markdown that MyST reads."""

import inspect
import re

# A section starts with its name alone in a line; what belongs to it is indented, but for examples.
SECTION = re.compile(r"([A-Z][a-z]+(?: [a-z]+)?):$")
ITEM = re.compile(r"(\*{0,2}\w[\w.*, ]*)(?:,$|: )")
LISTS = ("Args", "Call arguments", "Attributes", "Raises")


def to_markdown(docstring):
    """The docstring as Markdown: bold section names, lists of arguments, fenced examples."""
    title, body, parts = None, [], []
    for line in [*inspect.cleandoc(docstring).splitlines(), "End:"]:
        start = SECTION.match(line)
        if start:
            parts += [f"**{title}**"] if title else []
            parts.append(_items(body) if title in LISTS else _prose(body, indented=title))
            title, body = start.group(1), []
        else:
            body.append(line)
    return "\n\n".join(part.strip("\n") for part in parts if part.strip())


def _dedented(lines):
    return inspect.cleandoc("\n".join(["", *lines])).splitlines()


def _items(lines):
    """A definition list of `name: text`; a name may be several, with commas, on several lines."""
    entries = []
    for line in _dedented(lines):
        open_names = entries and entries[-1][-1].endswith(",") and ": " not in " ".join(entries[-1])
        if ITEM.match(line) and not open_names:
            entries.append([line])
        elif entries:
            entries[-1].append(line)
        else:  # no list, but a sentence
            return _prose(lines, indented=True)
    return "\n\n".join(map(_definition, entries))


def _definition(lines):
    names, _, text = "\n".join(lines).partition(": ")
    names = ", ".join(f"`{name.strip()}`" for name in names.split(","))
    return f"{names}\n: " + "\n  ".join(inspect.cleandoc(text).splitlines())


def _prose(lines, indented):
    """Text as it is; lines that begin with `>>>`, up to an empty one, become a fenced example."""
    lines, out, inside = _dedented(lines) if indented else lines, [], False
    for line in [*lines, ""]:
        if not inside and line.startswith(">>> "):
            out, inside = [*out, "```pycon"], True
        elif inside and not line:
            out, inside = [*out, "```"], False
        out.append("" if line == "<BLANKLINE>" else line)
    return "\n".join(out)

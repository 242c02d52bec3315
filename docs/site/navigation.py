"""What docs/index.md says of the pages: which there are, and in which section of the side bar."""

import posixpath
import re

LINK = re.compile(r"^- \[([^\]]+)\]\(([^)]+\.(?:md|ipynb))\)", re.M)


def pages(index):
    """The pages that the text of docs/index.md lists: their titles by their paths from the root."""
    found = LINK.findall(index)
    return {posixpath.normpath(posixpath.join("docs", path)): title for title, path in found}


def with_navigation(index):
    """The text of docs/index.md with what Sphinx makes the side bar of: a toctree a section."""
    parts = re.split(r"(?m)^(?=## )", index)
    for number, part in enumerate(parts):
        if found := pages(part):
            caption = re.match(r"## (.+)", part).group(1)
            entries = "\n".join(
                f"{title} </{posixpath.splitext(path)[0]}>" for path, title in found.items()
            )
            options = f":hidden:\n:caption: {caption}"
            parts[number] += f"\n```{{toctree}}\n{options}\n\n{entries}\n```\n\n"
    return "".join(parts)

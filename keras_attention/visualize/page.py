"""Alignments as a page for a browser: point at a token, see what it attended to."""

import html
import json
import string
from importlib import resources
from pathlib import Path

import numpy as np

from keras_attention.visualize.labels import check_alignment
from keras_attention.whole import whole

# Nothing is loaded from anywhere: the page works without a network, and keeps to itself.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
PAGE = string.Template("""<!doctype html>
<html>
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="$policy">
<meta name="viewport" content="width=device-width">
<title>$title</title>
<style>
$style</style>
</head>
<body class="attention-page">
<main id="attention"></main>
<script type="application/json" id="data">$data</script>
<script type="module">
$script
showAttention(
  document.getElementById("attention"),
  JSON.parse(document.getElementById("data").textContent),
);
</script>
</body>
</html>
""")
FRAME = '<iframe srcdoc="{}" style="width: 100%; height: {}px; border: none"></iframe>'


class AttentionPage:
    """What `attention_page` returns, of weights `[T, S]` or `[N, T, S]`. Notebooks show it.

    Args:
        html: the page, a str.
        height: pixels of the frame in a notebook.

    Returns:
        An object with the attribute `html` and the method `save`.

    Raises:
        FileNotFoundError: from `save`, if the folder is missing.

    Example: `attention_page(weights, source, target).save("attention.html")`
    """

    def __init__(self, html, height=480):
        self.html, self.height = html, height

    def save(self, path):
        """Writes the page, whole or not at all.

        Args:
            path: the file.

        Raises:
            FileNotFoundError: if its folder is missing.
        """
        with whole(path) as unfinished:
            unfinished.write_text(self.html, "utf-8")

    def _repr_html_(self):
        return FRAME.format(html.escape(self.html), self.height)

    def __repr__(self):
        return f"<AttentionPage of {len(self.html):,} characters>"


def attention_page(weights, source, target, title=None, names=None, path=None):
    """Attention weights as one HTML file to look at: point at a token, see what it looked at.

    Source tokens stand above target tokens. Pointing at a target token (by mouse, finger or the
    tab key) shades the source tokens by the weights that it gave them; pointing at a source token
    shades the target tokens by the weights that they gave it; a click keeps it so. Below is the
    whole matrix, the darker a cell the more weight. Nothing is loaded from elsewhere, so
    the file works by itself: in a notebook, in a report, without a network.

    Args:
        weights: `[T, S]`, an array, tensor or nested list; of `[N, T, S]`, such as one matrix a
            head, the reader chooses one, or their mean.
        source: list of S tokens.
        target: list of T tokens.
        title: text above.
        names: list of N names to choose by; "head 0" and so on by default.
        path: file to write as well, ending in .html. It is written whole or not at all.

    Returns:
        An `AttentionPage`: `html` is the text of the page, `save(path)` writes it, and a notebook
        shows it.

    Raises:
        FileNotFoundError: if the folder of `path` is missing.
        ValueError: if numbers of tokens or names do not fit the weights, weights are negative or
            not finite, or `path` ends otherwise.

    Example:

    >>> page = attention_page(
    ...     [[0.9, 0.1, 0.0], [0.0, 0.2, 0.8]], ["ich", "komme", "an"], ["I", "arrive"])
    >>> page.html.splitlines()[0]
    '<!doctype html>'
    """
    weights, source, target = check_alignment(weights, source, target, ranks=(2, 3))
    panels = weights.reshape(-1, len(target), len(source))
    if names is None:
        names = [f"head {index}" for index in range(len(panels))]
    elif not isinstance(names, (list, tuple)) or len(names) != len(panels):
        raise ValueError(
            f"`names` must be a list with a name for each of the {len(panels)} matrices of "
            f"`weights`. Received: {names!r}."
        )
    if path is not None and Path(path).suffix.lower() not in (".html", ".htm"):
        raise ValueError(f"`path` must end in .html. Received: {str(path)!r}.")
    title = None if title is None else _printable(title)
    data = {
        "title": title,
        "source": source,
        "target": target,
        "names": [_printable(name) for name in names],
        "weights": np.round(panels.astype("float64"), 4).tolist(),
    }
    page = AttentionPage(
        PAGE.substitute(
            policy=POLICY,
            title=html.escape(title or "Attention"),
            style=_part("attention_view.css"),
            script=_part("attention_view.js").replace("export function", "function"),
            # A script ends at "</", whatever string it stands in.
            data=json.dumps(data, ensure_ascii=False).replace("<", "\\u003c"),
        )
    )
    if path is not None:
        page.save(path)
    return page


def _printable(x):
    """Text without half letters, which no file can hold."""
    return str(x).encode("utf-8", "replace").decode("utf-8")


def _part(name):
    return resources.files(__package__).joinpath(name).read_text("utf-8")

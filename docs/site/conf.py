"""Settings of the site that `make docs` builds of the pages and the docstrings.

The source folder is the checkout, so that links between docs/, examples/ and README.md are the
same here as on a code host. The pages are those that docs/index.md lists.
"""

import re
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE), str(ROOT)]

from navigation import pages, with_navigation
from sphinx.errors import ExtensionError

import keras_attention

project, release = "keras_attention", keras_attention.__version__
extensions = ["myst_nb", "reference"]
root_doc = "docs/index"
include_patterns = ["docs/index.md", *pages((ROOT / "docs" / "index.md").read_text("utf-8"))]
exclude_patterns = [".*", "build", "dist", "**/node_modules"]
templates_path = ["templates"]

nb_execution_mode = "off"  # the notebook has its outputs
myst_heading_anchors = 3
myst_enable_extensions = ["colon_fence", "deflist"]
highlight_language = "none"  # what has no language is a formula
nitpicky = True
smartquotes = False  # "softmax" is a str

html_theme = "furo"
html_static_path, html_css_files = ["static"], ["site.css"]
html_title = f"{project} {release}"
html_additional_pages = {"index": "index.html"}
html_copy_source = False
html_show_copyright = False


def add_navigation(app, docname, source):
    if docname == root_doc:
        source[0] = with_navigation(source[0])


def check_offline(app, error):
    """Raises if a page loads anything from elsewhere: the site can be read without a network."""
    for page in Path(app.outdir).rglob("*.html"):
        loads = re.search(r"<(?:script|link|img)[^>]*https?://[^>]*>", page.read_text("utf-8"))
        if error is None and loads:
            raise ExtensionError(f"{page} loads from elsewhere: {loads.group()}")


def setup(app):
    app.connect("source-read", add_navigation)
    app.connect("build-finished", check_offline)

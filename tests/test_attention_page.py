"""Alignments as pages for a browser. (What a browser makes of them: tests/web.)"""

import html
import json
import re

import numpy as np
import pytest

from keras_attention import attention_page

SOURCE, TARGET = ["ich", "komme", "an", "."], ["I", "arrive", "."]
WEIGHTS = np.random.default_rng(0).dirichlet(np.ones(4), (2, 3))


def data_of(page):
    (text,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page.html)
    return json.loads(text)


@pytest.mark.parametrize("heads", [None, 2])
def test_the_page_holds_weights_and_tokens(heads):
    weights = WEIGHTS if heads else WEIGHTS[0]
    data = data_of(attention_page(weights, SOURCE, TARGET, title="I arrive."))
    assert (data["source"], data["target"], data["title"]) == (SOURCE, TARGET, "I arrive.")
    np.testing.assert_allclose(data["weights"], weights.reshape(-1, 3, 4), atol=5e-5)
    assert data["names"] == ["head 0", "head 1"][: heads or 1]


def test_names():
    data = data_of(attention_page(WEIGHTS, SOURCE, TARGET, names=["first", "second"]))
    assert data["names"] == ["first", "second"]


def test_any_text_can_stand_in_it():
    texts = ["</script><script>alert(1)</script>", "<!--", "&amp; \u2028", "$title"]
    page = attention_page(WEIGHTS[0], texts, TARGET, title="</title><b>$data & \ud55c")
    data = data_of(page)
    # What is long is cut, what can not be seen has its number.
    shown = ["</script><script>alert(…", "<!--", "&amp; U+2028", "$title"]
    assert data["source"] == shown and data["title"] == "</title><b>$data & 한"
    assert page.html.count("</script>") == 2 and "<!--" not in page.html.split("<body")[1]
    assert "<title>&lt;/title&gt;&lt;b&gt;$data &amp; 한</title>" in page.html


@pytest.mark.parametrize("title", [5, b"ab", "half \ud800"])
def test_any_title_can_stand_in_it(title, tmp_path):
    page = attention_page(WEIGHTS, SOURCE, TARGET, title=title, names=["a", "\udc80"])
    page.save(tmp_path / "page.html")
    assert data_of(page)["title"] == str(title).replace("\ud800", "?")


def test_nothing_is_loaded_from_elsewhere():
    page = attention_page(WEIGHTS, SOURCE, TARGET).html
    assert not re.search(r"https?:|src=|href=|@import|^import|^export", page, re.MULTILINE)
    assert "default-src 'none'" in page


def test_a_notebook_shows_it_in_a_frame():
    page = attention_page(WEIGHTS, SOURCE, TARGET)
    (inside,) = re.findall('srcdoc="([^"]*)"', page._repr_html_())
    assert html.unescape(inside) == page.html
    assert len(repr(page)) < 100


def test_files(tmp_path, monkeypatch):
    path = tmp_path / "page.html"
    page = attention_page(WEIGHTS, SOURCE, TARGET, path=path)
    assert path.read_text("utf-8") == page.html
    other = attention_page(WEIGHTS[:1], SOURCE, TARGET)

    def fail_in_the_middle(self, text, encoding):
        self.write_bytes(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(type(path), "write_text", fail_in_the_middle)
    with pytest.raises(OSError, match="disk full"):
        other.save(path)
    assert list(tmp_path.iterdir()) == [path] and path.read_text("utf-8") == page.html


@pytest.mark.parametrize(
    "error, message, change",
    [
        (ValueError, "`path` must end in .html. Received: 'a.png'", {"path": "a.png"}),
        (FileNotFoundError, "no folder", {"path": "missing/folder/a.html"}),
        (ValueError, "`names` must be a list with a name for each of the 2", {"names": ["a"]}),
        (ValueError, "`names` must be a list", {"names": "ab"}),
        (ValueError, "`weights` must have a row for each target token", {"source": ["a"]}),
        (ValueError, "`source` must be a list of tokens", {"source": "abcd"}),
        (ValueError, "`weights`", {"weights": -WEIGHTS}),
        (ValueError, "`weights` must be an array of numbers", {"weights": None}),
        (ValueError, "`names` must be a list", {"names": 5}),
        (ValueError, "`weights`", {"weights": WEIGHTS * np.nan}),
    ],
)
def test_errors(error, message, change):
    with pytest.raises(error, match=message):
        attention_page(**{"weights": WEIGHTS, "source": SOURCE, "target": TARGET, **change})

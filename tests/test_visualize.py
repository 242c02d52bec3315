"""Pictures and text of alignments: what is where, in which letters, in which files."""

import builtins
import sys
import warnings

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import example, given, settings
from hypothesis import strategies as st
from matplotlib import font_manager
from matplotlib.figure import Figure

from keras_attention.fonts import drawable
from keras_attention.visualize import alignment_text, plot_alignment

WEIGHTS = np.array([[0.9, 0.1, 0.0], [0.0, 0.25, 0.75]])
SOURCE, TARGET = ["ich", "komme", "an"], ["I", "arrive"]


@pytest.fixture(autouse=True)
def no_warnings():
    """A letter that no font has, or a layout that does not fit, would warn."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@pytest.fixture
def hangul_font(tmp_path):
    """A font that has two Hangul syllables and nothing else, installed for one test."""
    from fontTools.fontBuilder import FontBuilder
    from fontTools.pens.ttGlyphPen import TTGlyphPen

    names = {ord("한"): "han", ord("국"): "guk"}
    pen = TTGlyphPen(None)
    pen.moveTo((100, 0))
    for point in ((100, 700), (900, 700), (900, 0)):
        pen.lineTo(point)
    pen.closePath()
    box = pen.glyph()
    order = [".notdef", *names.values()]
    font = FontBuilder(1000, isTTF=True)
    font.setupGlyphOrder(order)
    font.setupCharacterMap(names)
    font.setupGlyf({name: box for name in order})
    font.setupHorizontalMetrics({name: (1000, 100) for name in order})
    font.setupHorizontalHeader(ascent=800, descent=-200)
    font.setupNameTable({"familyName": "Test Hangul", "styleName": "Regular"})
    font.setupOS2()
    font.setupPost()
    path = tmp_path / "hangul.ttf"
    font.save(path)
    fonts = font_manager.fontManager.ttflist
    before = list(fonts)
    font_manager.fontManager.addfont(path)
    yield "Test Hangul"
    fonts[:] = before
    font_manager.fontManager._findfont_cached.cache_clear()


def labels(figure, axis="x"):
    ticks = getattr(figure.axes[0], f"get_{axis}ticklabels")()
    return [tick.get_text() for tick in ticks]


def pixels(figure):
    """The picture as `[height, width, 3]`, from 0 (black) to 1, the first row at the bottom."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[::-1, :, :3] / 255


def cells(figure, axes):
    """The brightness of the middle of each cell, by target and source token."""
    picture = pixels(figure)
    middle = [
        [axes.transData.transform((s, t)).astype(int) for s in range(len(SOURCE))]
        for t in range(len(TARGET))
    ]
    return np.array([[picture[y, x].mean() for x, y in row] for row in middle])


def test_light_cells_have_much_weight():
    figure = plot_alignment(WEIGHTS, SOURCE, TARGET)
    np.testing.assert_allclose(cells(figure, figure.axes[0]), WEIGHTS, atol=0.01)
    assert labels(figure) == SOURCE
    assert labels(figure, "y") == TARGET
    first, second = (figure.axes[0].transData.transform((0, t))[1] for t in (0, 1))
    assert first > second, "target tokens run downwards"
    assert len(figure.axes) == 2, "a colour bar"
    assert isinstance(figure, Figure)


def test_source_tokens_are_on_top():
    axes = plot_alignment(WEIGHTS, SOURCE, TARGET).axes[0]
    pixels(axes.figure)
    top = axes.get_window_extent().y1
    shown = [tick.label2 for tick in axes.xaxis.get_major_ticks()]
    assert [label.get_text() for label in shown if label.get_visible()] == SOURCE
    assert all(label.get_window_extent().y0 > top for label in shown)
    assert not any(tick.label1.get_visible() for tick in axes.xaxis.get_major_ticks())


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_tensors_and_lists(dtype):
    for weights in (tf.constant(WEIGHTS, dtype), WEIGHTS.tolist()):
        figure = plot_alignment(weights, np.array(SOURCE), tuple(TARGET))
        np.testing.assert_allclose(figure.axes[0].images[0].get_array(), WEIGHTS, atol=2e-3)


def test_scale_of_colours():
    def scale(weights, **options):
        return plot_alignment(weights, SOURCE, TARGET, **options).axes[0].images[0].get_clim()

    assert scale(WEIGHTS / 10) == (0, 1), "pictures of several epochs compare"
    assert scale(WEIGHTS / 10, vmax=0.1) == (0, 0.1)
    assert scale(WEIGHTS * 2)[1] == pytest.approx(1.8)
    figure = plot_alignment(WEIGHTS, SOURCE, TARGET, cmap="viridis")
    assert figure.axes[0].images[0].get_cmap().name == "viridis"


def test_heads():
    weights = np.random.default_rng(0).dirichlet(np.ones(3), (5, 2))
    figure = plot_alignment(weights, SOURCE, TARGET, title="five heads")
    panels = [axes for axes in figure.axes if axes.images and axes.get_title()]
    assert [axes.get_title() for axes in panels] == [f"head {n}" for n in range(5)]
    for axes, panel in zip(panels, weights, strict=True):
        np.testing.assert_allclose(cells(figure, axes), panel, atol=0.01)
    assert len(figure.axes) == 6, "five panels and one colour bar"
    assert len(plot_alignment(weights[:1], SOURCE, TARGET).axes) == 2


def test_axes_of_the_caller(tmp_path):
    figure = Figure(layout="constrained")
    left, right = figure.subplots(1, 2)
    for axes, weights in ((left, WEIGHTS), (right, WEIGHTS[::-1])):
        assert plot_alignment(weights, SOURCE, TARGET, ax=axes, title="one") is figure
    np.testing.assert_allclose(cells(figure, left), WEIGHTS, atol=0.01)
    np.testing.assert_allclose(cells(figure, right), WEIGHTS[::-1], atol=0.01)
    assert left.get_title() == right.get_title() == "one"
    with pytest.raises(ValueError, match="`ax` takes one panel"):
        plot_alignment(np.stack([WEIGHTS] * 2), SOURCE, TARGET, ax=left)


@settings(max_examples=5, deadline=None)
@given(st.integers(1, 30), st.integers(1, 30), st.integers(1, 3), st.integers(0, 60))
@example(1, 1, 1, 0)
@example(1, 30, 1, 60)
@example(30, 1, 3, 60)
def test_any_size(steps, sources, heads, length):
    """Warning-free, with cells that are about as high as wide, where there are several."""
    source, target = ["s" * length] * sources, ["t" * length] * steps
    weights = np.full((heads, steps, sources), 1 / sources)
    figure = plot_alignment(weights, source, target, title="t" * length)
    pixels(figure)
    assert figure.get_size_inches().max() < 40
    box = figure.axes[0].get_window_extent()
    if min(steps, sources) >= 5:
        assert 0.5 < (box.width / sources) / (box.height / steps) < 2


def test_many_tokens_have_labels_that_do_not_touch():
    names = [f"w{i}" for i in range(200)]
    figure = plot_alignment(np.full((200, 200), 0.005), names, names)
    assert labels(figure) == labels(figure, "y") == names
    assert figure.get_size_inches().max() < 20
    pixels(figure)
    for boxes, start, end in (
        ([x.label2.get_window_extent() for x in figure.axes[0].xaxis.get_major_ticks()], 0, 2),
        ([x.label1.get_window_extent() for x in figure.axes[0].yaxis.get_major_ticks()], 1, 3),
    ):
        edges = np.sort([[box.extents[start], box.extents[end]] for box in boxes], axis=0)
        assert (edges[1:, 0] >= edges[:-1, 1] - 1).all()
    figure = plot_alignment(np.ones((1, 1000)), [str(i) for i in range(1000)], ["x"])
    assert labels(figure)[:3] == ["0", "3", "6"]
    assert figure.get_size_inches().max() < 30


def test_long_labels_are_turned_and_cut():
    upright, turned = (
        plot_alignment(WEIGHTS, [word] * 3, TARGET).axes[0].get_xticklabels()[0].get_rotation()
        for word in ("ab", "abcdefgh")
    )
    assert (upright, turned) == (0, 90)
    assert labels(plot_alignment(WEIGHTS, ["x" * 100] * 3, TARGET))[0] == "x" * 23 + "…"


def test_letters_that_look_like_markup_or_nothing():
    source = ["$x^2$", "\n", " "]
    figure = plot_alignment(WEIGHTS, source, [" a b ", b"caf\xc3\xa9\xff"], title="$t")
    pixels(figure)
    assert labels(figure) == ["$x^2$", "U+000A", "␣"]
    assert labels(figure, "y") == ["␣a b␣", "café\\xff"]
    assert labels(plot_alignment(WEIGHTS, ["\ud800", "", 7], TARGET)) == ["U+D800", "", "7"]


def test_letters_that_no_font_has():
    """(If a font here has these, the labels are theirs: see below.)"""
    (texts,), families = drawable(["\U000f0000b", "a b"])
    assert texts == ["U+F0000-b", "a b"]
    assert families == ["sans-serif"]


def test_hangul_without_a_font_is_romanised(monkeypatch):
    latin = [font for font in font_manager.fontManager.ttflist if font.name == "DejaVu Sans"]
    monkeypatch.setattr(font_manager.fontManager, "ttflist", latin)
    figure = plot_alignment(WEIGHTS, ["한국", "ᄒ", "x한"], TARGET, title="한국 말")
    pixels(figure)
    assert labels(figure) == ["han-gug", "hieuh", "x-han"]
    assert figure.get_suptitle() == "han-gug mal"


def test_hangul_with_a_font_that_has_it(hangul_font, monkeypatch):
    fonts = [f for f in font_manager.fontManager.ttflist if f.name in ("DejaVu Sans", hangul_font)]
    monkeypatch.setattr(font_manager.fontManager, "ttflist", fonts)
    decomposed = "한국"  # letters on their own, as NFD has them
    figure = plot_alignment(WEIGHTS, ["한국", decomposed, "말 한"], TARGET)
    assert labels(figure) == ["한국", "한국", "mal 한"]
    assert figure.axes[0].get_xticklabels()[0].get_fontfamily() == ["sans-serif", hangul_font]
    # The boxes of that font are drawn: a label of them is darker than one of points.
    picture = pixels(figure)
    extents = figure.axes[0].xaxis.get_major_ticks()[0].label2.get_window_extent().extents
    x0, y0, x1, y1 = extents.round().astype(int)
    assert picture[y0:y1, x0:x1].mean() < 0.5


@pytest.mark.parametrize(
    ("suffix", "start"),
    [("png", b"\x89PNG"), ("PNG", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")],
)
def test_files(tmp_path, suffix, start):
    path = tmp_path / f"alignment.{suffix}"
    for name in (path, str(path)):
        plot_alignment(WEIGHTS, SOURCE, TARGET, path=name)
        assert path.read_bytes().startswith(start)
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "alignment.png"
    path.write_text("old")

    def fail_in_the_middle(self, file, **kwargs):
        file.write_text("half")
        raise OSError("disk full")

    monkeypatch.setattr(Figure, "savefig", fail_in_the_middle)
    with pytest.raises(OSError, match="disk full"):
        plot_alignment(WEIGHTS, SOURCE, TARGET, path=path)
    assert [(p, p.read_text()) for p in tmp_path.iterdir()] == [(path, "old")]


def test_paths_that_can_not_be(tmp_path):
    for name in ("a.docx", "a", ".png"):
        with pytest.raises(ValueError, match="`path` must end in .*png, .*Received suffix"):
            plot_alignment(WEIGHTS, SOURCE, TARGET, path=tmp_path / name)
    with pytest.raises(FileNotFoundError, match="no folder.*missing"):
        plot_alignment(WEIGHTS, SOURCE, TARGET, path=tmp_path / "missing" / "a.png")


def test_no_window_system_is_touched():
    """No pyplot: figures are not collected, and no display is looked for."""
    before = "matplotlib.pyplot" in sys.modules
    plot_alignment(WEIGHTS, SOURCE, TARGET)
    assert ("matplotlib.pyplot" in sys.modules) == before


def test_without_matplotlib(monkeypatch):
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name.startswith("matplotlib"):
            raise ImportError("No module named 'matplotlib'")
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match=r"keras-attention-layers\[examples\]"):
        plot_alignment(WEIGHTS, SOURCE, TARGET)
    assert "arrive" in alignment_text(WEIGHTS, SOURCE, TARGET)


@pytest.mark.parametrize("draw", [plot_alignment, alignment_text])
def test_errors(draw):
    sizes = r"\(2, 3\), target of 3 tokens, source of 2 tokens"
    with pytest.raises(ValueError, match=sizes):
        draw(WEIGHTS, SOURCE[:2], [*TARGET, "!"])
    with pytest.raises(ValueError, match=r"\(2, 0\), target of 2 tokens, source of 0 tokens"):
        draw(np.zeros((2, 0)), [], TARGET)
    with pytest.raises(ValueError, match=r"target of 0 tokens"):
        draw(WEIGHTS, SOURCE, [])
    for bad, word in ((np.nan, "NaN"), (-0.1, "negative")):
        with pytest.raises(ValueError, match=f"`weights`.*{word}"):
            draw(np.where(WEIGHTS > 0.8, bad, WEIGHTS), SOURCE, TARGET)
    with pytest.raises(ValueError, match=r"`target` must be a list of tokens.*list\(target\)"):
        draw(WEIGHTS, SOURCE, "ab")
    with pytest.raises(ValueError, match="axes"):
        draw(np.zeros((1, 1, 2, 3)), SOURCE, TARGET)


def test_text():
    text = alignment_text([[0.0, 0.13, 0.37], [0.63, 0.87, 1.2]], ["a", "나는", " "], ["x", "간다"])
    assert text.splitlines() == ["     a 나는 ␣", "x    · ░░░░ ░", "간다 ▓ ▓▓▓▓ █"]
    with pytest.raises(ValueError, match="2 axes"):
        alignment_text(np.stack([WEIGHTS] * 2), SOURCE, TARGET)


def test_text_of_an_empty_output():
    assert alignment_text(np.zeros((0, 2)), ["a", "b"], []) == "a b"

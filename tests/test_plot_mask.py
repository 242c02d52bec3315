"""Pictures of masks: colours say which mask blocks a pair."""

import numpy as np
import pytest
from matplotlib.colors import to_rgba

from keras_attention import ScaledDotProductAttention, causal_mask, explain_mask, plot_mask
from keras_attention.visualize.mask_picture import COLOURS, SEVERAL

CAUSAL, OWN = np.tril(np.ones((3, 3), bool)), np.array([[1, 0, 0], [1, 1, 1], [0, 1, 1]], bool)


def drawn(axes):
    image = axes.images[0]
    return image.cmap(image.norm(image.get_array()))


def legend(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]


def test_each_pair_has_the_colour_of_what_blocks_it():
    figure = plot_mask({"causal": CAUSAL, "own": OWN}, title="two masks")
    white, first, second, dark = map(to_rgba, ("white", *COLOURS[:2], SEVERAL))
    expected = [[white, dark, dark], [white, white, first], [second, white, white]]
    np.testing.assert_allclose(drawn(figure.axes[0]), expected, atol=0.01)
    assert legend(figure) == ["causal", "own", "several"]


def test_heads_have_panels_where_they_differ():
    mask = np.stack([CAUSAL, OWN])[None]
    assert len(plot_mask(mask).axes) == 2
    assert len(plot_mask(np.stack([CAUSAL, CAUSAL])[None]).axes) == 1


def test_a_sample_and_labels_are_chosen(tmp_path):
    path = tmp_path / "mask.png"
    figure = plot_mask(
        np.stack([CAUSAL, OWN]), ["x", "y", "z"], ["a", "b", "c"], sample=1, path=path
    )
    assert path.read_bytes().startswith(b"\x89PNG")
    np.testing.assert_array_equal((drawn(figure.axes[0]) == 1).all(-1), OWN)
    assert [label.get_text() for label in figure.axes[0].get_xticklabels()] == ["a", "b", "c"]
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["x", "y", "z"]


def test_an_explanation_is_drawn():
    x = np.ones((1, 3, 4), "float32")
    found = explain_mask(ScaledDotProductAttention(), x, use_causal_mask=True, file=None)
    figure = plot_mask(found)
    assert legend(figure) == ["use_causal_mask"]
    np.testing.assert_array_equal((drawn(figure.axes[0]) == 1).all(-1), CAUSAL)


@pytest.mark.parametrize(
    "masks, options, message",
    [
        (np.zeros((2, 2)), {}, "must be boolean"),
        (np.ones(3, bool), {}, r"\[T, S\]"),
        ({"x": None}, {}, "a mask at least"),
        ({"x": CAUSAL, "y": np.ones((2, 2), bool)}, {}, "must fit each other"),
        (np.ones((2, 0), bool), {}, "a pair at least"),
        (np.ones((2, 3, 3), bool), {"sample": 2}, "from 0 to 1"),
        (causal_mask(3), {"query": ["a"]}, "must have 3 labels"),
        (causal_mask(3), {"path": "mask.xyz"}, "must end in one of"),
    ],
)
def test_bad_input_is_refused(masks, options, message):
    with pytest.raises(ValueError, match=message):
        plot_mask(masks, **options)

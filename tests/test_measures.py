"""Measures of alignments against plain loops and against numbers worked out by hand."""

import math

import numpy as np
import pytest
import reference_measures as ref
from backend import assert_allclose, tensor
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from keras_attention.links import alignment_error_rate, alignment_links, read_links
from keras_attention.measures import (
    alignment_coverage,
    alignment_entropy,
    alignment_monotonicity,
    coverage_vector,
)

T, S = 5, 7
MEASURES = {
    "entropy": (alignment_entropy, ref.entropy, {}),
    "normalized entropy": (alignment_entropy, ref.entropy, {"normalized": True}),
    "monotonicity": (alignment_monotonicity, ref.monotonicity, {"tolerance": 1e-3}),
    "coarse monotonicity": (alignment_monotonicity, ref.monotonicity, {"tolerance": 1.0}),
    "coverage vector": (coverage_vector, ref.coverage_vector, {}),
    "coverage": (alignment_coverage, ref.coverage, {}),
}
MEASURE = pytest.mark.parametrize(
    ("measure", "reference", "options"), MEASURES.values(), ids=list(MEASURES)
)
DIAGONAL = np.eye(4)


@st.composite
def alignments(draw):
    """Weights `[B, T, S]` with empty rows and zeros among them, and masks, some of them empty."""
    batch = draw(st.integers(1, 3))
    levels = st.sampled_from([0.0, 0.0, 0.125, 0.25, 0.5, 1.0])
    weights = draw(hnp.arrays("float64", (batch, T, S), elements=levels))
    sums = weights.sum(-1, keepdims=True)
    weights = weights / np.where(sums > 0, sums, 1)
    return weights, draw(hnp.arrays(bool, (batch, T))), draw(hnp.arrays(bool, (batch, S)))


@MEASURE
@settings(max_examples=60, deadline=None)
@given(alignments())
def test_against_the_reference(measure, reference, options, case):
    weights, query_mask, value_mask = case
    actual = measure(weights, query_mask, value_mask, **options)
    expected = [reference(*sentence, **options) for sentence in zip(*case, strict=True)]
    assert_allclose(actual, expected, rtol=1e-12, atol=1e-12)
    # One sentence alone, and without masks where all is real.
    alone = measure(weights[0], query_mask[0], value_mask[0], **options)
    np.testing.assert_array_equal(alone, actual[0])
    everything = np.ones(T, bool), np.ones(S, bool)
    np.testing.assert_array_equal(
        measure(weights[0], **options), measure(weights[0], *everything, **options)
    )


@MEASURE
@settings(max_examples=25, deadline=None)
@given(alignments(), st.integers(1, 4))
def test_padding_changes_nothing(measure, reference, options, case, more):
    weights, query_mask, value_mask = case
    padded = np.pad(weights, ((0, 0), (0, more), (0, more)), constant_values=0.25)
    actual = measure(
        padded,
        np.pad(query_mask, ((0, 0), (0, more))),
        np.pad(value_mask, ((0, 0), (0, more))),
        **options,
    )
    actual = actual[:, :S] if measure is coverage_vector else actual
    expected = measure(weights, query_mask, value_mask, **options)
    assert_allclose(actual, expected, rtol=1e-12)


def test_by_hand():
    uniform = np.full((3, 4), 0.25)
    assert alignment_entropy(DIAGONAL) == 0
    assert math.isclose(alignment_entropy(uniform), math.log(4))
    assert math.isclose(alignment_entropy(uniform, normalized=True), 1)
    assert math.isclose(alignment_entropy(uniform, value_mask=[1, 1, 0, 0], normalized=True), 1), (
        "two of four tokens are real: log 2 is the most"
    )
    # (log 2 + 0 + 3/4 log 4/3 + 1/4 log 4) / 3
    mixed = [[0.5, 0.5], [0, 1], [0.75, 0.25]]
    expected = (math.log(2) + 0.75 * math.log(4 / 3) + 0.25 * math.log(4)) / 3
    assert math.isclose(alignment_entropy(mixed), expected)

    assert alignment_monotonicity(DIAGONAL) == 1
    assert alignment_monotonicity(DIAGONAL[::-1]) == 0
    # Positions 0.5, 1, 0.25: on, back.
    assert alignment_monotonicity(mixed) == 0.5
    assert alignment_monotonicity(mixed, tolerance=0.75) == 1
    assert alignment_monotonicity(mixed, query_mask=[1, 0, 1]) == 0

    assert coverage_vector(mixed).tolist() == [1.25, 1.75]
    assert alignment_coverage(mixed) == 1
    assert alignment_coverage(uniform) == 0.75
    assert alignment_coverage([[1, 0, 0], [1, 0, 0]]) == pytest.approx(1 / 3)


def test_nothing_to_measure_is_nan():
    nothing = np.zeros((2, 3))
    assert math.isnan(alignment_entropy(nothing))
    assert math.isnan(alignment_monotonicity(nothing))
    assert math.isnan(alignment_monotonicity([[0.5, 0.5]]))
    assert alignment_coverage(nothing) == 0
    assert math.isnan(alignment_coverage(nothing, value_mask=[0, 0, 0]))
    for measure in (alignment_entropy, alignment_monotonicity, alignment_coverage):
        assert measure(np.zeros((0, 2, 3))).shape == (0,)
        assert np.isnan(measure(np.zeros((1, 0, 0)))).all()


def test_weights_that_do_not_sum_to_one():
    """Those of local attention with a Gaussian: the shape of a row counts, not its sum."""
    weights = np.array([[0.2, 0.6], [0.1, 0.1]])
    whole = weights / weights.sum(-1, keepdims=True)
    assert alignment_entropy(weights) == pytest.approx(alignment_entropy(whole))
    assert alignment_monotonicity(weights) == alignment_monotonicity(whole)


def test_what_weights_and_masks_may_be():
    expected = alignment_entropy([[0.5, 0.5], [0.0, 1.0]], [1, 1], [True, True])
    for dtype in ("float16", "bfloat16", "float32", "float64"):
        weights = tensor([[0.5, 0.5], [0.0, 1.0]], dtype)
        assert alignment_entropy(weights, np.array([1, 1])) == expected
        assert isinstance(alignment_entropy(weights), float)
        assert alignment_entropy(weights[None]).shape == (1,)
        assert alignment_links(weights[None]) == [{(0, 0), (1, 1)}]


@pytest.mark.parametrize(
    ("weights", "masks", "message"),
    [
        ([0.5, 0.5], {}, "2 or 3 axes"),
        (np.zeros((2, 8, 3, 4)), {}, r"Received shape \(2, 8, 3, 4\)"),
        ([[0.5, np.nan]], {}, "NaN"),
        ([[np.inf, 0.5]], {}, "infinite"),
        ([[1.5, -0.5]], {}, "negative"),
        ([[0.5, 0.5], [1.0]], {}, "array of numbers"),
        ([["a"]], {}, "array of numbers"),
        (DIAGONAL, {"query_mask": [1, 1]}, r"`query_mask`.*\(4,\).*\(2,\)"),
        (DIAGONAL[None], {"value_mask": [1, 1, 1, 1]}, r"`value_mask`.*\(1, 4\)"),
        (DIAGONAL, {"value_mask": [1.0, 1.0, 0.0, 0.0]}, "float64"),
        (DIAGONAL, {"value_mask": [1, 2, 0, 0]}, "0 and 1"),
    ],
)
def test_errors(weights, masks, message):
    for measure in (
        alignment_entropy,
        alignment_monotonicity,
        coverage_vector,
        alignment_coverage,
        alignment_links,
    ):
        with pytest.raises(ValueError, match=message):
            measure(weights, **masks)


# Links


@settings(max_examples=60, deadline=None)
@given(alignments(), st.sampled_from([0.0, 0.3, 0.5, 1.0]))
def test_links_against_the_reference(case, threshold):
    actual = alignment_links(*case, threshold=threshold)
    assert actual == [ref.links(*sentence, threshold) for sentence in zip(*case, strict=True)]


PAIRS = st.frozensets(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=8)


@settings(max_examples=100, deadline=None)
@given(PAIRS, PAIRS, PAIRS)
def test_error_rate_against_the_reference(found, sure, possible):
    rate = alignment_error_rate(found, sure, possible)
    if found or sure:
        assert math.isclose(rate, ref.error_rate(found, sure, possible), abs_tol=1e-12)
    else:
        assert rate == 0
    assert 0 <= rate <= 1
    assert rate == alignment_error_rate(found, sure, possible | sure)
    assert rate >= alignment_error_rate(found, sure, possible | found)
    assert alignment_error_rate(sure, sure, possible) == 0


def test_error_rate_by_hand():
    sure, possible = {(0, 0), (1, 1)}, {(2, 1), (2, 2)}
    assert alignment_error_rate(sure, sure, possible) == 0
    assert alignment_error_rate(sure | possible, sure, possible) == 0
    assert alignment_error_rate({(3, 3)}, sure, possible) == 1
    assert alignment_error_rate(set(), sure) == 1
    # A = 3 links, 1 sure, 2 possible or sure: 1 - (1 + 2) / (3 + 2).
    assert alignment_error_rate({(0, 0), (2, 1), (0, 3)}, sure, possible) == pytest.approx(0.4)
    # Without possible links, 1 - F of precision 1/3 and recall 1/2.
    assert alignment_error_rate({(0, 0), (2, 1), (0, 3)}, sure) == pytest.approx(0.6)


def test_error_rate_of_several_sentences_sums_their_counts():
    found, sure = [{(0, 0)}, {(0, 0), (1, 1), (1, 2)}], [{(0, 0)}, {(1, 1)}]
    # Hits 2 + 2 of 2 + 4; the mean of the sentences' rates would be (0 + 1/2) / 2.
    assert alignment_error_rate(found, sure) == pytest.approx(1 / 3)
    assert alignment_error_rate([], []) == 0


def test_error_rate_of_weights():
    weights = [[0.9, 0.1, 0.0], [0.2, 0.3, 0.5]]
    assert alignment_error_rate(weights, {(0, 0), (2, 1)}) == 0
    assert alignment_error_rate(np.array([weights] * 2), [{(0, 0), (2, 1)}, {(1, 0)}]) == 1 - 4 / 7


def test_links_of_a_file():
    sure, possible = read_links(" 0-0  12-3 4?5 6p7\n")
    assert sure == {(0, 0), (12, 3)}
    assert possible == {(0, 0), (12, 3), (4, 5), (6, 7)}
    assert read_links("1-1 2?1", first=1) == ({(0, 0)}, {(0, 0), (1, 0)})
    assert read_links("") == (set(), set())


@pytest.mark.parametrize("bad", ["1", "1-", "a-b", "1:2", "-1-2", "1-2-3", "1.0-2", "²-1"])
def test_a_line_that_is_not_links(bad):
    with pytest.raises(ValueError, match=f"counted from 0. Received '{bad}'"):
        read_links(f"0-0 {bad} 1-1")


def test_errors_of_links():
    with pytest.raises(ValueError, match="counted from 1. Received '0-1'"):
        read_links("0-1", first=1)
    with pytest.raises(ValueError, match="Received 1, 2 and 2"):
        alignment_error_rate([set()], [set(), set()])
    with pytest.raises(ValueError, match="Received 1, 1 and 2"):
        alignment_error_rate([set()], [set()], [set(), set()])
    with pytest.raises(ValueError, match="`sure` must be a set"):
        alignment_error_rate([set()], [(0, 0)])
    with pytest.raises(ValueError, match="`possible` must be a set"):
        alignment_error_rate({(0, 0)}, {(0, 0)}, {0, 1})
    with pytest.raises(ValueError, match="`weights`"):
        alignment_error_rate([{(0, 0)}], {(0, 0)})

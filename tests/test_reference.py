"""The reference against answers that were derived by hand."""

import ast
import math
from pathlib import Path

import numpy as np
import pytest
import reference as ref

HALF, QUARTER = 1 / 2, 1 / 4
NEAR = dict(rel=1e-12, abs=1e-12)


def test_imports_nothing_but_numpy():
    tree = ast.parse(Path(ref.__file__).read_text())
    imported = {
        name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names
    } | {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert imported == {"math", "numpy"}


# Masks


def test_masks():
    assert ref.padding_mask([2, 0], 3).tolist() == [[[True, True, False]], [[False] * 3]]
    assert ref.padding_mask([2, 1]).shape == (2, 1, 2)
    assert ref.causal_mask(3).astype(int).tolist() == [[1, 0, 0], [1, 1, 0], [1, 1, 1]]
    # The last of two queries sees all four keys, the first of four sees none of the two.
    assert ref.causal_mask(2, 4).astype(int).tolist() == [[1, 1, 1, 0], [1, 1, 1, 1]]
    assert ref.causal_mask(4, 2).astype(int).tolist() == [[0, 0], [0, 0], [1, 0], [1, 1]]
    assert ref.window_mask(3, window=1).astype(int).tolist() == np.eye(3, dtype=int).tolist()
    assert ref.window_mask(2, 4, window=2).astype(int).tolist() == [[0, 1, 1, 1], [0, 0, 1, 1]]
    assert ref.segment_mask([[1, 2]], [[2, 1, 1]]).astype(int).tolist() == [[[0, 1, 1], [1, 0, 0]]]


def test_combine_masks():
    """[B, T, S] goes by sample, never by head, though there are as many heads as samples."""
    by_sample = [[[1, 1]], [[0, 1]]]
    by_head = [[[[1, 1]], [[1, 0]]]] * 2
    both = ref.combine_masks((2, 2, 1, 2), by_sample, by_head, None)
    assert both.astype(int).tolist() == [[[[1, 1]], [[1, 0]]], [[[0, 1]], [[0, 0]]]]
    assert ref.combine_masks((2, 1, 1, 2), [[0, 1]]).astype(int).tolist() == [[[[0, 1]]]] * 2
    padding = [[[1, 0]], [[1, 1]]]  # [B, 1, S]
    assert ref.combine_masks((2, 2, 2), padding, [[1, 0], [1, 1]]).astype(int).tolist() == [
        [[1, 0], [1, 0]],
        [[1, 0], [1, 1]],
    ]


def test_layer_mask_is_the_and_of_all():
    mask = ref.layer_mask(
        1,
        2,
        3,
        query_mask=[[1, 1]],
        value_mask=[[1, 1, 0]],
        key_mask=[[0, 1, 1]],
        attention_mask=[[[1, 1, 1], [1, 1, 1]]],
        causal=True,
    )
    assert mask.astype(int).tolist() == [[[0, 1, 0], [0, 1, 0]]]
    assert not ref.layer_mask(1, 1, 2, query_mask=[[0]]).any()
    assert ref.layer_mask(1, 2, 2, attention_mask=[[[1, 0], [0, 1]]])[0].tolist() == [
        [True, False],
        [False, True],
    ]


# Softmax


def test_masked_softmax():
    scores = [[0.0, math.log(3), 7.0], [1.0, 1.0, 1.0]]
    assert ref.masked_softmax(scores, [[1, 1, 0], [0, 0, 0]]) == pytest.approx(
        np.array([[1 / 4, 3 / 4, 0], [0, 0, 0]]), **NEAR
    )
    assert ref.masked_softmax([1000.0, 1000.0]) == pytest.approx(np.array([HALF, HALF]))
    assert ref.masked_softmax([np.nan, 5.0], [False, True]).tolist() == [0.0, 1.0]


# Scores


def test_scores():
    q, k = [1.0, 2.0], [3.0, 5.0]
    assert ref.dot(q, k) == 13
    assert ref.scaled_dot(q, k) == pytest.approx(13 / math.sqrt(2), **NEAR)
    assert ref.scaled_dot(q, k, scale=HALF) == 6.5
    # W k = (1*3 + 0*5 + 2*7, 0*3 + 1*5 - 1*7) = (17, -2); q^T W k = 17 - 4
    assert ref.general(q, [3.0, 5.0, 7.0], [[1, 0, 2], [0, 1, -1]]) == 13
    # tanh(atanh(1/2)) = 1/2: 4 * 1/2 + 8 * 0
    atanh_half = math.atanh(HALF)
    assert ref.additive([atanh_half, 1], [0, -1], [4, 8]) == pytest.approx(2, **NEAR)
    assert ref.additive([0, 1], [0, -1], [4, 8], bias=[atanh_half, 0]) == pytest.approx(2, **NEAR)
    # [q; k] W = (1 * a, 2 * 0 + 3 * 0): 4 * 1/2
    kernel = [[atanh_half, 0], [0, 0], [0, 0], [0, 0]]
    assert ref.concat(q, k, kernel, [4, 8]) == pytest.approx(2, **NEAR)
    # The key sits after the query.
    kernel = [[0, 0], [0, 0], [atanh_half / 3, 0], [0, 0]]
    assert ref.concat(q, k, kernel, [4, 8]) == pytest.approx(2, **NEAR)


def test_pairwise_pairs_within_a_sample():
    query = np.arange(2 * 3).reshape(2, 3, 1)
    key = np.array([[[1], [10]], [[100], [1000]]])
    assert ref.pairwise(ref.dot, query, key).tolist() == [
        [[0, 0], [1, 10], [2, 20]],
        [[300, 3000], [400, 4000], [500, 5000]],
    ]


# Attention


def test_attend_published_numbers():
    """A report's numbers, kept in tests of other kinds as well: row 1 may attend to nothing."""
    query, key = [[1, 0], [0, 1]], [[1, 2], [3, 5], [5, 9]]
    context, weights = ref.attend(query, key, key, mask=[[1, 1, 0], [0, 0, 0]])
    ratio = math.exp(2 / math.sqrt(2))  # scores 1 / sqrt(2) and 3 / sqrt(2)
    w = ratio / (1 + ratio)
    assert weights == pytest.approx(np.array([[1 - w, w, 0], [0, 0, 0]]), **NEAR)
    assert context == pytest.approx(np.array([[1 + 2 * w, 2 + 3 * w], [0, 0]]), **NEAR)
    assert context[0] == pytest.approx(np.array([2.608859, 4.413289]), abs=5e-7)


def test_attend_leaves_out_what_is_masked():
    key = [[0.0], [np.nan], [0.0]]
    value = [[2.0], [np.inf], [4.0]]
    context, weights = ref.attend([[1.0]], key, value, mask=[[1, 0, 1]])
    assert context.tolist() == [[3.0]] and weights.tolist() == [[HALF, 0, HALF]]
    context, weights = ref.attend(
        [[1.0]], [[0.0]] * 3, value, scores_bias=[[0, -np.inf, math.log(3)]]
    )
    assert context == pytest.approx(np.array([[3.5]])) and weights[0][1] == 0
    context, weights = ref.attend([[1.0]], [[0.0]], [[2.0]], scores_bias=[[-np.inf]])
    assert context.tolist() == [[0.0]] and weights.tolist() == [[0.0]]


def test_luong_and_bahdanau_layers():
    log3 = math.log(3)
    for score_mode, query, weights in [
        ("dot", [[log3]], {}),
        ("scaled_dot", [[log3]], {}),
        ("general", [[log3 / 2]], {"kernel": [[2.0]]}),
        ("concat", [[5.0]], {"kernel": [[0.0], [math.atanh(HALF)]], "v": [2 * log3]}),
    ]:
        context, alignment = ref.luong_attention(
            query, [[0], [1]], [[4], [8]], score_mode, **weights
        )
        assert alignment == pytest.approx(np.array([[1 / 4, 3 / 4]]), **NEAR)
        assert context == pytest.approx(np.array([[7.0]]), **NEAR)
    with pytest.raises(ValueError, match="cosine"):
        ref.luong_attention([[1.0]], [[1.0]], [[1.0]], "cosine")
    a = math.atanh(HALF)
    # Key 0: tanh(-1 a + 0 + a) = 0. Key 1: tanh(-a + a + a) = 1/2.
    context, alignment = ref.bahdanau_attention(
        [[1.0]], [[0], [HALF]], [[4], [8]], [[-a]], [[2 * a]], [2 * log3], bias=[a]
    )
    assert alignment == pytest.approx(np.array([[1 / 4, 3 / 4]]), **NEAR)
    assert context == pytest.approx(np.array([[7.0]]), **NEAR)


def multi_head_kernels(key_value_heads):
    """Two query heads: 1 looks for the key's first feature, 2 for the second, or its opposite."""
    heads = key_value_heads
    return {
        "query": np.ones((1, 2, 1)),
        "key": np.array([[1, 0], [0, 1]])[:, :heads, None],
        "value": np.ones((1, heads, 1)),
        "output": np.array([[[1, 0]], [[0, 10]]]),  # head 1 writes place 1, head 2 place 2
    }


def test_multi_head_attention():
    log3 = math.log(3)
    query, value = [[[1.0]]], [[[4.0], [8.0]]]
    key = [[[0, log3], [log3, 0]]]
    output, weights = ref.multi_head_attention(query, key, value, multi_head_kernels(2))
    assert weights[0, :, 0] == pytest.approx(np.array([[1 / 4, 3 / 4], [3 / 4, 1 / 4]]), **NEAR)
    assert output == pytest.approx(np.array([[[7.0, 50.0]]]), **NEAR)
    # One key/value head for both query heads.
    output, weights = ref.multi_head_attention(query, key, value, multi_head_kernels(1))
    assert output == pytest.approx(np.array([[[7.0, 70.0]]]), **NEAR)
    # A mask of one head; biases: value + 1 in head 2, output + (100, 1000).
    biases = {
        "query": np.zeros((2, 1)),
        "key": np.zeros((2, 1)),
        "value": np.array([[0], [1]]),
        "output": [100, 1000],
    }
    output, weights = ref.multi_head_attention(
        query, key, value, multi_head_kernels(2), biases, mask=[[[[1, 0]], [[1, 1]]]]
    )
    assert weights[0, 0, 0].tolist() == [1, 0]
    assert output == pytest.approx(np.array([[[104.0, 1060.0]]]), **NEAR)


def test_grouped_heads_are_neighbours():
    """Four query heads on two key/value heads: 0 and 1 share the first, 2 and 3 the second."""
    kernels = {
        "query": np.ones((1, 4, 1)),
        "key": np.ones((1, 2, 1)),
        "value": np.array([[[1], [100]]]),
        "output": np.eye(4)[:, None, :],
    }
    output, _ = ref.multi_head_attention([[[1]]], [[[1]]], [[[3]]], kernels)
    assert output.tolist() == [[[3, 3, 300, 300]]]


# Cells


def test_simple_rnn_cell():
    step = ref.simple_rnn_cell([[1.0]], [[2.0]], [math.atanh(HALF) - 8])
    output, state = step([2.0], [[3.0]])
    assert output == pytest.approx([HALF], **NEAR) and state[0] is output


@pytest.mark.parametrize(
    "reset_after, candidate",
    [
        (True, 2 * 1 + 5 + QUARTER * (3 * 4 + 8)),  # W x + b + r (R h + b')
        (False, 2 * 1 + 5 + 3 * QUARTER * 4),  # W x + b + R (r h)
    ],
)
def test_gru_cell(reset_after, candidate):
    """x = 1, h = 4; z = sigmoid(-log 3) = 1/4 = r; the candidate is made atanh(1/2) by its bias."""
    log3 = math.log(3)
    kernel, recurrent = [[1.0, 0.0, 2.0]], [[1.0, 0.0, 3.0]]
    bias = np.array([-5 - log3, -log3, 5.0])
    bias[2] += math.atanh(HALF) - candidate
    if reset_after:
        bias = [bias, [0.0, 0.0, 8.0]]
    step = ref.gru_cell(kernel, recurrent, bias, reset_after)
    output, state = step([1.0], [[4.0]])
    assert output == pytest.approx([QUARTER * 4 + (1 - QUARTER) * HALF], **NEAR)
    assert state[0] is output


def test_lstm_cell():
    """i = 1/4, f = 1/2, candidate 1/2, o = 3/4, c = 4: c' = 2 + 1/8, h' = 3/4 tanh(2 1/8)."""
    log3 = math.log(3)
    kernel, recurrent = [[1.0, 0, 0, 0]], [[0, 1.0, 0, 0]]
    step = ref.lstm_cell(kernel, recurrent, [-log3 - 1, -2, math.atanh(HALF), log3])
    output, state = step([1.0], [[2.0], [4.0]])
    assert state[1] == pytest.approx([2 + 1 / 8], **NEAR)
    assert output == pytest.approx([3 / 4 * math.tanh(2 + 1 / 8)], **NEAR)
    assert state[0] is output


def test_stacked_cells():
    def add(x, state):
        return x + state[0], [state[0] + 1]

    output, state = ref.stacked_cells(add, add)(1, [[10], [200]])
    assert output == 211 and state == [[11], [201]]
    assert ref.output_of(state) == 201 and ref.output_of([5, 6]) == 5


# Decoders


def mean_attention(query, memory, mask):
    """The mean of the real memory plus the query: shows which query was used."""
    real = np.asarray(mask, bool)
    return memory[real].mean(0) + query, real / real.sum()


def sum_cell(x, state):
    new = state[0] + x.sum()
    return new, [new]


def test_bahdanau_decoder_uses_the_state_before():
    outputs, weights, state = ref.bahdanau_decoder(
        sum_cell,
        mean_attention,
        [[1.0], [1.0], [1.0]],
        [np.array([10.0])],
        [[2.0], [4.0], [90.0]],
        memory_mask=[1, 1, 0],
        mask=[1, 0, 1],
    )
    # c_1 = 3 + 10, s_1 = 10 + 1 + 13 = 24; step 2 is masked; c_3 = 3 + 24, s_3 = 24 + 1 + 27 = 52
    assert outputs.tolist() == [[24], [0], [52]] and state[0].tolist() == [52]
    assert weights.tolist() == [[HALF, HALF, 0], [0, 0, 0], [HALF, HALF, 0]]


def test_luong_decoder_uses_the_state_after():
    kernel, bias = np.array([[0.01], [0.1]]), np.array([1.0])  # context first, then the state
    outputs, weights, state = ref.luong_decoder(
        sum_cell,
        mean_attention,
        kernel,
        bias,
        [[1.0], [1.0]],
        [np.array([10.0])],
        [[2.0], [4.0]],
    )
    # s = 11, 12; c = 3 + s; tanh(0.01 c + 0.1 s + 1)
    expected = [[math.tanh(0.14 + 1.1 + 1)], [math.tanh(0.15 + 1.2 + 1)]]
    assert outputs == pytest.approx(np.array(expected), **NEAR) and state[0].tolist() == [12]
    assert weights.tolist() == [[HALF, HALF]] * 2


def test_one_query():
    context, weights = ref.one_query(ref.luong_attention, score_mode="dot")(
        [math.log(3)], [[0], [1], [9]], [1, 1, 0]
    )
    assert context == pytest.approx([3 / 4], **NEAR)
    assert weights == pytest.approx([1 / 4, 3 / 4, 0], **NEAR)


# Search


def test_greedy_search():
    """Token n is followed by n + 1 with probability 3/4; 3 ends."""

    def step(token, state):
        logits = np.zeros(4)
        logits[min(token + 1, 3)] = math.log(9)
        return logits, state + 1, [state, 1 - state]

    ids, length, score, weights = ref.greedy_search(step, 0, 0, 3, 5)
    assert ids == [1, 2, 3, 0, 0] and length == 2 and weights == [[0, 1], [1, 0], [2, -1]]
    assert score == pytest.approx(3 * math.log(3 / 4), **NEAR)
    ids, length, score, weights = ref.greedy_search(step, 0, 0, 3, 2)
    assert ids == [1, 2] and length == 2 and score == pytest.approx(2 * math.log(3 / 4), **NEAR)
    assert ref.greedy_search(step, 0, 2, 3, 3, pad_token=9)[0] == [3, 9, 9]
    assert ref.greedy_search(step, 0, 0, 3, 0)[:3] == ([], 0, 0.0)

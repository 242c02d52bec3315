"""Which mask blocks what, and what lost a mask on the way to attention."""

import io

import keras
import numpy as np
import pytest
import reference as ref
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import ops

from keras_attention import (
    BahdanauAttention,
    LuongAttention,
    MultiHeadAttention,
    ScaledDotProductAttention,
    TransformerEncoderBlock,
    causal_mask,
    explain_mask,
    padding_mask,
)
from keras_attention.explain import lost as watching

B, T, S, D, N = 2, 3, 5, 4, 2
QUERY_MASK = np.array([[1, 1, 0], [1, 1, 1]], bool)
VALUE_MASK = np.array([[1, 1, 1, 1, 0], [0, 1, 1, 0, 0]], bool)
PAIRS = np.random.default_rng(0).random((B, T, S)) < 0.6


def draw(*shape):
    return np.random.default_rng(sum(shape)).normal(size=shape).astype("float32")


def explain(*args, **kwargs):
    return explain_mask(*args, file=None, **kwargs)


def conjunction(explanation):
    return np.logical_and.reduce([*explanation.parts.values(), np.ones_like(explanation.mask)])


class TestMasks:
    def test_each_is_told_apart(self):
        """Counted by hand: of 2 x 3 x 3 pairs."""
        found = explain({"causal": causal_mask(3), "padding": padding_mask([3, 1]), "none": None})
        causal = np.tril(np.ones((3, 3), bool))
        expected = np.stack([causal, causal & [True, False, False]])
        np.testing.assert_array_equal(found.mask, expected)
        assert list(found.parts) == ["causal", "padding"]
        assert found.counts() == {"causal": (6, 3), "padding": (6, 3)}
        assert found.blocked_by(1, 0, 2) == ("causal", "padding")
        assert found.blocked_by(1, 2, 2) == ("padding",)
        assert found.blocked_by(1, 2, 0) == ()
        assert found.empty_rows.size == 0
        np.testing.assert_array_equal(found.unseen_keys, [[1, 1], [1, 2]])

    def test_rows_without_a_key_name_what_emptied_them(self):
        first = np.array([[[1, 0], [1, 1]]], bool)
        second = np.array([[[0, 1], [1, 1]]], bool)
        found = explain({"first": first, "second": second, "third": np.ones((1, 2, 2), bool)})
        np.testing.assert_array_equal(found.empty_rows, [[0, 0]])
        assert "first + second: sample 0, query 0" in str(found)
        assert "1 of 2" in str(found)

    def test_one_mask_needs_no_name(self):
        np.testing.assert_array_equal(explain(causal_mask(3)).mask, causal_mask(3))

    def test_errors_name_the_masks_and_what_is_missing(self):
        with pytest.raises(ValueError, match=r"The masks are: a \(3, 3\), b \(4, 4\)"):
            explain_mask({"a": causal_mask(3), "b": causal_mask(4)})
        with pytest.raises(ValueError, match="`explain_mask` of a model needs inputs"):
            explain_mask(keras.Sequential([keras.layers.Dense(1)]))

    def test_large_masks_print_no_picture(self):
        text = str(explain({"causal": causal_mask(200)}))
        assert "may attend; blocked" not in text and len(text.splitlines()) == 3

    def test_it_is_printed_where_one_wants(self, capsys):
        file = io.StringIO()
        found = explain_mask(causal_mask(2), file=file)
        assert file.getvalue() == f"{found}\n"
        assert capsys.readouterr().out == ""
        explain_mask(causal_mask(2))
        assert capsys.readouterr().out == f"{found}\n"

    @pytest.mark.parametrize(
        "source, message",
        [
            ({"x": np.zeros((2, 2))}, "`x` must be boolean"),
            ({"x": None}, "must hold a mask"),
            ({"x": causal_mask(2), "y": causal_mask(3)}, "mask"),
            ({"x": np.ones(3, bool)}, "axes"),
        ],
    )
    def test_bad_masks_are_refused(self, source, message):
        with pytest.raises(ValueError, match=message):
            explain(source)

    def test_masks_take_no_call(self):
        with pytest.raises(ValueError, match="no further arguments"):
            explain(causal_mask(2), use_causal_mask=True)

    def test_a_place_needs_all_its_indices(self):
        with pytest.raises(IndexError, match="place in the mask"):
            explain(causal_mask(2)).blocked_by(0)


LAYERS = {
    "multi-head": lambda **_: MultiHeadAttention(N, 3),
    "grouped": lambda **_: MultiHeadAttention(N, 3, num_key_value_heads=1),
    "additive": lambda **_: BahdanauAttention(3),
    "dot": lambda **_: LuongAttention("dot"),
    "scaled, sparse": lambda **_: ScaledDotProductAttention(normalizer="sparsemax", dropout=0.5),
}


@pytest.mark.parametrize("make", LAYERS.values(), ids=LAYERS)
@settings(max_examples=8, deadline=None)
@given(causal=st.booleans(), chosen=st.sets(st.sampled_from(["query", "value", "pairs"])))
def test_a_layer_is_explained_as_the_reference_masks(make, causal, chosen):
    layer = make()
    masks = {"query_mask": QUERY_MASK} if "query" in chosen else {}
    if "value" in chosen:
        masks["value_mask"] = VALUE_MASK
    if "pairs" in chosen:
        masks["attention_mask"] = PAIRS
    found = explain(layer, draw(B, T, D), draw(B, S, D), use_causal_mask=causal, **masks)
    expected = ref.layer_mask(B, T, S, causal=causal, **masks)
    heads = found.mask.reshape(B, -1, T, S)
    for head in range(heads.shape[1]):
        np.testing.assert_array_equal(heads[:, head], expected)
    np.testing.assert_array_equal(conjunction(found), found.mask)
    assert set(found.parts) == {*masks, *(["use_causal_mask"] if causal else [])}


class TestLayer:
    def test_masks_that_tensors_carry_are_named_so(self):
        ids = np.array([[3, 1, 2, 0], [1, 0, 0, 0]])
        embedded = keras.layers.Embedding(5, D, mask_zero=True)(ids)
        found = explain(MultiHeadAttention(N, 3), embedded, embedded, use_causal_mask=True)
        assert list(found.parts) == ["mask of query", "mask of value", "use_causal_mask"]
        real = ids != 0
        expected = real[:, None, :, None] & real[:, None, None, :] & np.tril(np.ones((4, 4), bool))
        np.testing.assert_array_equal(found.mask, np.broadcast_to(expected, (2, N, 4, 4)))

    def test_an_explicit_mask_replaces_the_implicit_one(self):
        ids = np.array([[3, 1, 0]])
        embedded = keras.layers.Embedding(5, D, mask_zero=True)(ids)
        mask = np.array([[False, True, True]])
        found = explain(ScaledDotProductAttention(), draw(1, 2, D), embedded, value_mask=mask)
        assert list(found.parts) == ["value_mask"]
        np.testing.assert_array_equal(found.mask, np.broadcast_to(mask[:, None], (1, 2, 3)))

    def test_a_bias_of_minus_infinity(self):
        bias = np.where(PAIRS, 1e9, -np.inf).astype("float32")
        found = explain(
            ScaledDotProductAttention(), draw(B, T, D), draw(B, S, D), attention_bias=bias
        )
        assert list(found.parts) == ["attention_bias"]
        np.testing.assert_array_equal(found.mask, PAIRS)

    def test_a_window_of_the_layer(self):
        layer = MultiHeadAttention(1, 3, sliding_window=2)
        found = explain(layer, draw(1, 4, D), draw(1, 4, D), use_causal_mask=True)
        assert list(found.parts) == ["use_causal_mask", "sliding_window"]
        expected = [[1, 0, 0, 0], [1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1]]
        np.testing.assert_array_equal(found.mask[0, 0], np.array(expected, bool))
        assert found.blocked_by(0, 0, 3, 0) == ("sliding_window",)

    def test_a_local_window(self):
        layer = LuongAttention("dot", local="monotonic", window=1)
        found = explain(layer, draw(1, 3, D), draw(1, 5, D))
        assert list(found.parts) == ["local"]
        expected = [[1, 1, 0, 0, 0], [1, 1, 1, 0, 0], [0, 1, 1, 1, 0]]
        np.testing.assert_array_equal(found.mask[0], np.array(expected, bool))

    def test_what_a_memory_hides(self):
        layer = BahdanauAttention(3)
        layer.build((B, D), (B, S, D))
        memory = layer.precompute(draw(B, S, D), value_mask=VALUE_MASK)
        found = explain(layer, draw(B, D), memory=memory)
        assert list(found.parts) == ["memory"]
        np.testing.assert_array_equal(found.mask, VALUE_MASK[:, None])

    def test_the_layer_stays_as_it_is(self):
        layer = MultiHeadAttention(N, 3)
        query, value = draw(B, T, D), draw(B, S, D)
        before = ops.convert_to_numpy(layer(query, value))
        explain(layer, query, value, value_mask=VALUE_MASK)
        np.testing.assert_array_equal(ops.convert_to_numpy(layer(query, value)), before)

    def test_several_axes_and_wrong_arguments_are_refused(self):
        layer = MultiHeadAttention(N, 3, attention_axes=(1, 2))
        with pytest.raises(ValueError, match="one axis"):
            explain(layer, draw(1, 2, 3, D), draw(1, 2, 3, D))
        with pytest.raises(ValueError, match="can not be called so.*maks"):
            explain(ScaledDotProductAttention(), draw(1, 2, D), maks=1)


class Plus(keras.layers.Layer):
    """Adds a table of positions, the usual way: the mask is lost inside."""

    def __init__(self):
        super().__init__(name="plus")
        self.attention = ScaledDotProductAttention(name="inner")

    def call(self, x):
        shifted = x + 1.0
        return self.attention(shifted, shifted)


class Opaque(keras.layers.Layer):
    def call(self, x):
        return x * 2.0


def embedding():
    return keras.layers.Embedding(7, D, mask_zero=True, name="embedding")


IDS = np.array([[3, 1, 2, 0], [1, 0, 0, 0]])


def functional(between, attention=None):
    """A model: embedding, what lies between, attention."""
    attention = attention or ScaledDotProductAttention(name="attention")
    ids = keras.Input((None,), dtype="int32")
    x = between(embedding()(ids))
    return keras.Model(ids, attention(x, x))


class TestLost:
    def test_nothing_is_lost_where_layers_keep_masks(self):
        found = explain(functional(keras.layers.Dense(D)), IDS)["attention"]
        assert found.lost == ()
        real = IDS != 0
        np.testing.assert_array_equal(found.mask, real[:, :, None] & real[:, None, :])

    def test_what_never_had_a_mask_lost_none(self):
        x = keras.Input((4, D))
        y = x + keras.layers.Dense(D)(x)
        model = keras.Model(x, ScaledDotProductAttention(name="attention")(y, y))
        assert explain(model, draw(B, 4, D))["attention"].lost == ()

    def test_a_plain_sum_in_a_functional_model(self):
        found = explain(functional(lambda x: x + keras.layers.Dense(D)(x)), IDS)["attention"]
        assert [sentence.split(",")[0] for sentence in found.lost] == [
            "the mask of `query`",
            "the mask of `value`",
        ]
        assert "(Add), a plain operation; keras.layers.Add keeps masks" in found.lost[0]
        assert found.mask.all()
        kept = functional(lambda x: keras.layers.Add()([x, keras.layers.Dense(D)(x)]))
        assert explain(kept, IDS)["attention"].lost == ()

    def test_a_sum_inside_of_a_layer(self):
        ids = keras.Input((None,), dtype="int32")
        found = explain(keras.Model(ids, Plus()(embedding()(ids))), IDS)["inner"]
        assert len(found.lost) == 2
        assert "inside of 'plus' (Plus)" in found.lost[0]

    def test_a_layer_without_support(self):
        found = explain(functional(Opaque(name="opaque")), IDS)["attention"]
        assert "dropped by 'opaque' (Opaque), a layer that does not support masks" in found.lost[0]

    def test_it_is_found_behind_further_layers(self):
        model = functional(lambda x: keras.layers.Dense(D)(Opaque(name="opaque")(x)))
        assert "'opaque'" in explain(model, IDS)["attention"].lost[1]

    @pytest.mark.tensorflow_only("tf.function")
    def test_a_compiled_function(self):
        embed, attention = embedding(), ScaledDotProductAttention(name="attention")

        @tf.function
        def attend(x):
            return attention(x, x)

        found = explain(lambda ids: attend(embed(ids)), IDS)["attention"]
        assert found.mask is None
        assert "boundary of a `tf.function`" in found.lost[0]
        assert "not known here" in str(found) and "none" in str(found)

    def test_a_layer_of_keras_that_takes_masks_away(self):
        theirs = keras.layers.MultiHeadAttention(1, 3, name="theirs")
        memory_ids, ids = keras.Input((None,), dtype="int32"), keras.Input((None, D))
        memory = embedding()(memory_ids)
        ours = MultiHeadAttention(1, 3, name="ours")
        model = keras.Model([ids, memory_ids], ours(theirs(ids, memory), memory))
        found = explain(model, [draw(B, T, D), IDS])
        assert found["theirs"].lost == () and list(found["theirs"].parts) == ["mask of value"]
        assert found["ours"].lost == (
            "the mask of `value`, taken off by an earlier call of 'theirs' (MultiHeadAttention)",
        )

    def test_an_explicit_mask_is_not_lost(self):
        attention = ScaledDotProductAttention(name="attention")
        ids = keras.Input((None,), dtype="int32")
        x = embedding()(ids)
        x = x + keras.layers.Dense(D)(x)
        mask = keras.ops.not_equal(ids, 0)
        model = keras.Model(ids, attention(x, x, query_mask=mask, value_mask=mask))
        assert explain(model, IDS)["attention"].lost == ()

    def test_layers_inside_of_blocks_and_models(self):
        """A block, twice, inside of a model inside of a model."""
        block = TransformerEncoderBlock(N, 8, name="block")
        inputs = keras.Input((None, D))
        inner = keras.Model(inputs, block(block(inputs)), name="inner")
        ids = keras.Input((None,), dtype="int32")
        found = explain(keras.Model(ids, inner(embedding()(ids))), IDS)
        assert len(found) == 2
        for explanation in found.values():
            assert explanation.lost == ()
            assert explanation.mask.sum() == N * (9 + 1)

    def test_keras_is_left_as_it_was(self):
        before = keras.layers.Layer.__call__, keras.Operation.__call__
        explain(functional(keras.layers.Dense(D)), IDS)
        with pytest.raises(ZeroDivisionError):
            explain(lambda: 1 / 0)
        assert (keras.layers.Layer.__call__, keras.Operation.__call__) == before
        assert not watching.watching.locked()

    def test_a_function_without_attention_is_refused(self):
        with pytest.raises(ValueError, match="No attention layer was called"):
            explain(keras.layers.Dense(3), draw(2, 3))

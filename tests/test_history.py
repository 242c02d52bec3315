"""Scores that read the steps before: coverage, location features, the normalised score."""

import copy

import keras
import numpy as np
import pytest
import reference as ref
import reference_alignment as past_ref
from backend import FLOAT64, assert_allclose, differentiate, dtype_of, tensor, to_numpy, variable_of
from conftest import MODES, assert_gradients
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import ops
from test_layers import LAYER_TOLERANCES, close, exact_weights, randomise

from keras_attention import BahdanauAttention, Coverage, LocationFeatures
from keras_attention.layers.history import get_history

B, T, S, Dq, Dk, Dv, U = 2, 3, 5, 7, 4, 6, 3

HISTORIES = {
    "coverage": lambda **kw: Coverage(**kw),
    "fertility": lambda **kw: Coverage(max_fertility=2.5, **kw),
    "location": lambda **kw: LocationFeatures(2, 3, **kw),
    "cumulative": lambda **kw: LocationFeatures(2, 5, cumulative=True, **kw),
}
ALL = pytest.mark.parametrize("history", HISTORIES)
QUERY_MASK = np.array([[1, 0, 1], [1, 1, 0]], bool)
VALUE_MASK = np.array([[1, 1, 0, 1, 0], [1, 1, 1, 1, 1]], bool)
ATTENTION_MASK = np.ones((B, T, S), bool)
ATTENTION_MASK[0, 0, :2] = ATTENTION_MASK[1, 1] = False  # one row that sees nothing
MASKS = {
    "query_mask": QUERY_MASK,
    "value_mask": VALUE_MASK,
    "attention_mask": ATTENTION_MASK,
}
ALL_MASKED = ATTENTION_MASK & VALUE_MASK[:, None]


def make(history, dtype="float64", normalize=False, **arguments):
    """A built layer with random weights."""
    layer = BahdanauAttention(
        U,
        normalize=normalize,
        history=HISTORIES[history](dtype=dtype) if history else None,
        dtype=dtype,
        name="attention",
        **arguments,
    )
    layer.build((None, None, Dq), (None, None, Dv), (None, None, Dk))
    return randomise(layer, np.random.default_rng(3))


def draw(rng, dtype="float64", batch=B, steps=T, keys=S):
    """Query, value and key."""
    shapes = (batch, steps, Dq), (batch, keys, Dv), (batch, keys, Dk)
    return [rng.normal(size=shape).astype(dtype) for shape in shapes]


def weights_of(layer):
    """The layer's weights by name, in float64."""
    named = zip(layer.trainable_variables, exact_weights(layer), strict=True)
    return {w.path.removeprefix(f"{layer.path}/"): array for w, array in named}


def step_of(layer, normalize=past_ref.softmax):
    """One step of the layer in the reference."""
    weights, history = weights_of(layer), layer.history

    def features(values, past):
        if isinstance(history, Coverage):
            u = None if history.max_fertility is None else exact_weights(history)[0]
            return past_ref.coverage(past, values, u, history.max_fertility)
        (filters,) = exact_weights(history)
        read = past.total if history.cumulative else past.previous
        return past_ref.location(read, filters[:, 0])

    def score(query, keys, values, past):
        return past_ref.additive_scores(
            query,
            keys,
            weights["query/kernel"],
            weights["key/kernel"],
            weights["v"],
            weights.get("query/bias"),
            weights.get("g"),
            None if history is None else features(values, past),
            weights.get("history_kernel"),
        )

    return past_ref.step_of(score, normalize)


def by_the_equations(layer, query, value, key, mask=None, query_mask=None):
    """Context, weights, and the past of each sample."""
    step, size = step_of(layer), len(query)
    mask, query_mask = (x if x is not None else [None] * size for x in (mask, query_mask))
    samples = [
        past_ref.attend(step, query[b], key[b], value[b], mask[b], query_mask[b])
        for b in range(size)
    ]
    context, weights, pasts = zip(*samples, strict=True)
    return np.array(context), np.array(weights), pasts


def start(layer, value, key, **masks):
    memory = layer.precompute(value, key, **masks)
    return memory, layer.initial_alignment(memory)


def check_alignment(alignment, pasts, dtype="float64"):
    names = {"previous": "previous", "coverage": "total"}
    for name, x in alignment.items():
        close(x, [getattr(past, names[name]) for past in pasts], dtype)


def everything(layer, query, value, key, **options):
    """Context, weights and alignment of a call from the beginning."""
    memory, alignment = start(layer, value, key)
    return layer(query, memory=memory, alignment=alignment, return_attention_scores=True, **options)


# The equations


@pytest.mark.parametrize("normalize", [False, True], ids=["plain", "normalised"])
@ALL
def test_equations_with_all_masks(history, normalize, rng):
    layer = make(history, normalize=normalize)
    inputs = draw(rng)
    context, weights, alignment = everything(layer, *inputs, **MASKS)
    expected = by_the_equations(layer, *inputs, ALL_MASKED, QUERY_MASK)
    close(context, expected[0], "float64")
    close(weights, expected[1], "float64")
    assert sorted(alignment) == list(layer.history.carries)
    check_alignment(alignment, expected[2])
    # The same from `value` and `key`, and whether or not weights are asked for.
    query, value, key = inputs
    close(layer(query, value, key, **MASKS), context, "float64")


@pytest.mark.parametrize("normalize", [False, True], ids=["plain", "normalised"])
def test_normalised_score_without_a_history(normalize, rng):
    layer = make(None, normalize=normalize)
    inputs = draw(rng)
    context, weights = layer(*inputs, return_attention_scores=True)
    expected = by_the_equations(layer, *inputs)
    close(context, expected[0], "float64")
    close(weights, expected[1], "float64")
    names = {"query/kernel", "key/kernel", "v"} | ({"query/bias", "g"} if normalize else set())
    assert set(weights_of(layer)) == names


def test_only_the_direction_of_v_counts_in_the_normalised_score(rng):
    layer = make(None, normalize=True)
    inputs = draw(rng)
    before = layer(*inputs)
    layer.v.assign(7.0 * layer.v)
    close(layer(*inputs), before, "float64")
    layer.g.assign(7.0 * layer.g)
    assert np.abs(layer(*inputs) - before).max() > 1e-3


def test_the_bias_and_g_at_the_start():
    layer = BahdanauAttention(4, normalize=True)
    layer.build((None, 3), (None, None, 2))
    assert float(layer.g) == 0.5  # 1 / sqrt(units), as if v had been drawn of that length
    assert layer.use_bias and not BahdanauAttention(4).use_bias
    assert not BahdanauAttention(4, use_bias=False, normalize=True).use_bias


@pytest.mark.parametrize("history", ["fertility", "location"])
def test_modes(history, mode, rng):
    layer, inputs = make(history, "float32"), draw(rng, "float32")

    def call(query, value, key):
        return everything(layer, query, value, key, query_mask=QUERY_MASK, value_mask=VALUE_MASK)

    context, weights, alignment = MODES[mode](call)(*map(tensor, inputs))
    mask = np.broadcast_to(VALUE_MASK[:, None], (B, T, S))
    expected = by_the_equations(layer, *inputs, mask, QUERY_MASK)
    close(context, expected[0])
    close(weights, expected[1])
    check_alignment(alignment, expected[2], "float32")


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
@ALL
def test_half_precision(history, policy, rng):
    layer = make(history, policy, normalize=True)
    half = policy.removeprefix("mixed_")
    inputs = [ops.cast(x, half) for x in draw(rng)]
    context, weights, alignment = everything(layer, *inputs)
    expected = by_the_equations(layer, *(to_numpy(ops.cast(x, "float64")) for x in inputs))
    assert dtype_of(context) == dtype_of(weights) == half
    limit = LAYER_TOLERANCES[policy]
    assert_allclose(to_numpy(context), expected[0], atol=limit, rtol=limit)
    assert_allclose(to_numpy(weights), expected[1], atol=limit, rtol=limit)
    assert all(dtype_of(x) == "float32" for x in alignment.values())  # sums of many small numbers


def test_a_history_of_another_dtype(rng):
    """One made without a dtype computes in float32, also inside of a float64 layer."""
    layer = BahdanauAttention(U, history=LocationFeatures(2, 3), dtype="float64")
    inputs = draw(rng)
    layer.build(*(x.shape for x in inputs))
    randomise(layer)
    assert dtype_of(layer(*inputs)) == ("float64" if FLOAT64 else "float32")
    close(layer(*inputs), by_the_equations(layer, *inputs)[0])


# By hand


def test_coverage_by_hand():
    features = Coverage()({"coverage": np.array([[0.5, 1.25, 0.0]])}, np.ones((1, 3, 2)))
    assert np.array_equal(features, [[[0.5], [1.25], [0.0]]])


def test_fertility_by_hand():
    history = Coverage(max_fertility=4.0)
    history.build((None, None, 2))
    history.u.assign([np.log(3.0), 5.0])
    values = np.array([[[0.0, 0.0], [1.0, 0.0], [-1.0, 0.0]]])
    features = history({"coverage": np.array([[1.0, 3.0, 1.0]])}, values)
    close(features[0, :, 0], [0.5, 1.0, 1.0])  # fertilities 4 times 1/2, 3/4 and 1/4


def test_location_by_hand():
    history = LocationFeatures(filters=2, kernel_size=3)
    history.build((None, None, 1))
    history.convolution.kernel.assign([[[1.0, 0.0]], [[10.0, 0.0]], [[100.0, 1.0]]])
    features = history({"previous": np.array([[1.0, 2.0, 3.0]])}, np.ones((1, 3, 1)))
    close(features[0], [[210.0, 2.0], [321.0, 3.0], [32.0, 0.0]])


def test_coverage_moves_the_attention_on():
    """With a large negative weight of the coverage, what was attended to is left alone."""
    layer = BahdanauAttention(1, history="coverage")
    layer.build((None, 1), (None, None, 1))
    for weight, value in ((layer.v, 40.0), (layer.key_projection.kernel, 1.0)):
        weight.assign(np.full(weight.shape, value))
    layer.query_projection.kernel.assign([[0.0]])
    layer.history_kernel.assign([[-9.0]])
    memory = np.array([[[0.5], [1.5], [1.0]]])
    _, weights = layer(np.zeros((1, 3, 1)), memory, return_attention_scores=True)
    assert np.argmax(weights[0], -1).tolist() == [1, 2, 0]
    layer.history_kernel.assign([[0.0]])
    _, weights = layer(np.zeros((1, 3, 1)), memory, return_attention_scores=True)
    assert np.argmax(weights[0], -1).tolist() == [1, 1, 1]


@ALL
def test_without_weight_on_the_past_it_is_plain_attention(history, rng):
    layer, plain, inputs = make(history), make(None), draw(rng)
    layer.history_kernel.assign(0 * layer.history_kernel)
    for name in ("query_projection", "key_projection"):
        getattr(plain, name).set_weights(getattr(layer, name).get_weights())
    plain.v.assign(layer.v)
    close(layer(*inputs), plain(*inputs), "float64")


# Steps


@ALL
def test_steps_equal_the_sequence(history, rng):
    layer = make(history)
    query, value, key = draw(rng)
    context, weights, alignment = everything(
        layer, query, value, key, query_mask=QUERY_MASK, value_mask=VALUE_MASK
    )
    memory, past = start(layer, value, key, value_mask=VALUE_MASK)
    for t in range(T):
        before = past
        one_context, one_weights, past = layer(
            query[:, t],
            memory=memory,
            alignment=past,
            query_mask=QUERY_MASK[:, t],
            return_attention_scores=True,
        )
        close(one_context, context[:, t], "float64")
        close(one_weights, weights[:, t], "float64")
        for name in past:  # a masked step is not part of the past
            hidden = ~QUERY_MASK[:, t]
            assert np.array_equal(to_numpy(past[name])[hidden], to_numpy(before[name])[hidden])
    for name in past:
        close(past[name], alignment[name], "float64")


@settings(max_examples=6, deadline=None)
@given(history=st.sampled_from(list(HISTORIES)), seed=st.integers(0, 99), cut=st.integers(1, T - 1))
def test_a_sequence_in_two_parts(history, seed, cut):
    layer = make(history)
    query, value, key = draw(np.random.default_rng(seed))
    context, weights, alignment = everything(layer, query, value, key)
    memory, past = start(layer, value, key)
    parts = []
    for part in (query[:, :cut], query[:, cut:]):
        *results, past = layer(part, memory=memory, alignment=past, return_attention_scores=True)
        parts.append(results)
    for whole, halves in zip((context, weights), zip(*parts, strict=True), strict=True):
        close(np.concatenate(halves, axis=1), whole, "float64")
    for name in past:
        close(past[name], alignment[name], "float64")


@ALL
def test_what_is_returned(history, rng):
    layer = make(history)
    query, value, key = draw(rng)
    memory, alignment = start(layer, value, key)
    context, weights, after = everything(layer, query, value, key)
    results = layer(query, memory=memory, alignment=alignment)
    assert len(results) == 2  # the alignment is returned where one was given
    close(results[0], context, "float64")
    for name in after:
        close(results[1][name], after[name], "float64")
    only_weights = layer(query, value, key, return_attention_scores=True)
    close(only_weights[1], weights, "float64")
    assert len(only_weights) == 2


# Masks


def without(x, s):
    return np.delete(x, s, axis=1)


@settings(max_examples=6, deadline=None)
@given(history=st.sampled_from(["coverage", "fertility"]), s=st.integers(0, S - 1))
def test_masked_key_equals_deleted_key(history, s):
    layer = make(history)
    query, value, key = draw(np.random.default_rng(s))
    mask = np.ones((B, S), bool)
    mask[:, s] = False
    masked = everything(layer, query, value, key, value_mask=mask)
    deleted = everything(layer, query, without(value, s), without(key, s))
    close(masked[0], deleted[0], "float64")
    close(without(to_numpy(masked[1]).swapaxes(1, 2), s), np.swapaxes(deleted[1], 1, 2), "float64")
    assert np.all(to_numpy(masked[1])[:, :, s] == 0)


@pytest.mark.parametrize("side", ["before", "behind"])
@ALL
def test_padding_changes_nothing(history, side, rng):
    """Location features too: a masked neighbour counts as one beyond the end."""
    layer = make(history)
    query, value, key = draw(rng)
    context, weights, _ = everything(layer, query, value, key)
    pad = ((0, 0), (2, 0) if side == "before" else (0, 2), (0, 0))
    mask = np.pad(np.ones((B, S), bool), pad[:2])
    value, key = (np.pad(x, pad, constant_values=np.nan) for x in (value, key))
    steps = slice(2, None) if side == "before" else slice(S)
    padded = everything(layer, query, value, key, value_mask=mask)
    close(padded[0], context, "float64")
    close(padded[1][:, :, steps], weights, "float64")
    # Padding of the query, between its steps.
    more = np.insert(query, 1, np.nan, axis=1)
    query_mask = np.insert(np.ones((B, T), bool), 1, False, axis=1)
    padded = everything(layer, more, value, key, query_mask=query_mask, value_mask=mask)
    close(without(padded[0], 1), context, "float64")
    assert np.all(padded[0][:, 1] == 0) and np.all(padded[1][:, 1] == 0)


@pytest.mark.parametrize("history", ["fertility", "location"])
def test_rubbish_in_padding_reaches_no_gradient(history, rng):
    layer, clean = make(history), draw(rng)

    def run(*inputs):
        tensors = [tensor(x) for x in inputs]

        def call(*tensors):
            return layer(
                *tensors, return_attention_scores=True, query_mask=QUERY_MASK, value_mask=VALUE_MASK
            )

        def loss(*tensors):
            return sum(ops.sum(x * x) for x in call(*tensors))

        return to_numpy([*call(*tensors), *differentiate(loss, tensors, layer.weights)])

    masks = (QUERY_MASK, VALUE_MASK, VALUE_MASK)
    soiled = [np.where(m[..., None], x, np.nan) for x, m in zip(clean, masks, strict=True)]
    for a, b in zip(run(*clean), run(*soiled), strict=True):
        assert np.all(np.isfinite(b))
        close(b, a, "float64")


# Gradients


@pytest.mark.parametrize("normalize", [False, True], ids=["plain", "normalised"])
@ALL
def test_gradients_are_the_numerical_ones(history, normalize, rng):
    """With respect to all weights (V, the filters, u, g, ...), the inputs and the past."""
    layer = make(history, normalize=normalize)
    query, value, key = draw(rng, steps=2, keys=3)
    memory = layer.precompute(value, key)
    past = {name: rng.random((B, 3)) for name in layer.history.carries}
    given = [variable_of(x) for x in (query, value, key, *past.values())]
    factors = [rng.normal(size=s) for s in ((B, 2, Dv), (B, 2, 3), (B, 3))]
    mask = np.array([[1, 1, 0], [1, 1, 1]], bool)

    def loss():
        query, value, key, *alignment = map(tensor, given)
        memory = layer.precompute(value, key, value_mask=mask)
        alignment = dict(zip(past, alignment, strict=True))
        results = layer(query, memory=memory, alignment=alignment, return_attention_scores=True)
        flat = keras.tree.flatten(results)
        return sum(ops.sum(tensor(f) * x) for f, x in zip(factors, flat, strict=True))

    assert len(memory) == 2
    assert_gradients(loss, given + layer.trainable_weights, 1e-5)


# Keras around them


@ALL
def test_saved_cloned_and_copied(history, rng, tmp_path):
    query, value = keras.Input((None, Dq)), keras.Input((None, Dv))
    layer = BahdanauAttention(U, history=HISTORIES[history](), normalize=True)
    model = keras.Model([query, value], layer(query, value, return_attention_scores=True))
    randomise(model)
    inputs = draw(rng, "float32")[:2]
    expected = to_numpy(tuple(model(inputs)))
    assert len(layer.trainable_weights) == (6 if history == "coverage" else 7) == len(model.weights)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    cloned = keras.models.clone_model(model)
    cloned.set_weights(model.get_weights())
    for copied in (loaded, cloned, copy.deepcopy(model)):
        for a, b in zip(copied(inputs), expected, strict=True):
            np.testing.assert_array_equal(a, b)
    other = draw(rng, "float32", batch=4, steps=T + 1, keys=S - 2)[:2]
    assert [x.shape for x in model(other)] == [(4, T + 1, Dv), (4, T + 1, S - 2)]
    assert [x.shape for x in model.outputs] == [(None, None, Dv), (None, None, None)]


@ALL
def test_config_before_and_after_building(history, rng):
    layer = BahdanauAttention(U, history=HISTORIES[history](name="its_history"), name="a")
    before = layer.get_config()
    layer(*draw(rng, "float32"))
    assert layer.get_config() == before
    again = BahdanauAttention.from_config(before)
    assert again.get_config() == before and not again.built
    assert again.history.get_config() == layer.history.get_config()
    assert type(again.history) is type(layer.history)


@pytest.mark.parametrize("name, kind", [("coverage", Coverage), ("location", LocationFeatures)])
def test_history_by_name(name, kind):
    layer = BahdanauAttention(U, history=name, dtype="float64")
    assert type(layer.history) is kind and layer.history.compute_dtype == "float64"
    assert get_history(None) is None
    again = get_history(keras.saving.serialize_keras_object(kind(name="x")))
    assert type(again) is kind and again.name == "x"


@pytest.mark.parametrize("history", ["fertility", "location"])
def test_an_empty_batch(history):
    layer = make(history, "float32")
    inputs = [ops.zeros((0, *shape)) for shape in ((T, Dq), (S, Dv), (S, Dk))]
    context, weights, alignment = everything(layer, *inputs)
    assert context.shape == (0, T, Dv) and weights.shape == (0, T, S)
    assert all(x.shape == (0, S) for x in alignment.values())
    for gradient in differentiate(
        lambda: everything(layer, *inputs)[0], variables=layer.trainable_weights
    ):
        assert np.all(np.asarray(gradient) == 0)


@ALL
def test_declared_shapes(history):
    layer = make(history, "mixed_float16")
    query, value, key = (keras.Input(s) for s in ((None, Dq), (None, Dv), (None, Dk)))
    context, weights = layer(query, value, key, return_attention_scores=True)
    assert context.shape == (None, None, Dv) and weights.shape == (None, None, None)
    query, value, key = (keras.Input(s, batch_size=B) for s in ((T, Dq), (S, Dv), (S, Dk)))
    context, weights = layer(query, value, key, return_attention_scores=True)
    assert (context.shape, weights.shape) == ((B, T, Dv), (B, T, S))
    assert dtype_of(context) == dtype_of(weights) == "float16"
    specs = layer.alignment_spec(B, S)
    _, alignment = start(layer, np.ones((B, S, Dv)), np.ones((B, S, Dk)))
    assert {n: (x.shape, x.dtype) for n, x in specs.items()} == {
        n: (tuple(x.shape), dtype_of(x)) for n, x in alignment.items()
    }


@pytest.mark.parametrize("history", ["fertility", "location"])
def test_dropout_leaves_the_past_alone(history, rng):
    """The weights that later steps read are those before dropout."""
    layer, inputs = make(history, dropout=0.5, seed=1), draw(rng)
    plain = everything(layer, *inputs)
    dropped = everything(layer, *inputs, training=True)
    assert np.abs(dropped[0] - plain[0]).max() > 1e-3
    close(dropped[1], plain[1], "float64")
    for name in plain[2]:
        close(dropped[2][name], plain[2][name], "float64")


# Errors


@pytest.mark.parametrize(
    "make_it, words",
    [
        (
            lambda: BahdanauAttention(3, history="fertility"),
            ("`history`", "'coverage'", "fertility"),
        ),
        (lambda: BahdanauAttention(3, history=1.5), ("`history`", "1.5")),
        (lambda: BahdanauAttention(3, history=keras.layers.Dense(1)), ("`history`", "Dense")),
        (lambda: Coverage(max_fertility=0.0), ("`max_fertility`", "positive", "0.0")),
        (lambda: Coverage(max_fertility=-2), ("`max_fertility`", "-2")),
        (lambda: Coverage(max_fertility="2"), ("`max_fertility`", "'2'")),
        (lambda: LocationFeatures(kernel_size=4), ("`kernel_size`", "odd", "4")),
        (lambda: LocationFeatures(kernel_size=0), ("`kernel_size`", "positive integer", "0")),
        (lambda: LocationFeatures(filters=0), ("`filters`", "positive integer", "0")),
        (lambda: LocationFeatures(filters=1.5), ("`filters`", "1.5")),
    ],
)
def test_wrong_arguments(make_it, words):
    with pytest.raises(ValueError) as error:
        make_it()
    assert all(word in str(error.value) for word in words)


def test_softmax_of_the_reference_is_the_one_of_the_other_reference():
    scores, allowed = np.array([1.0, 2.0, 3.0]), np.array([1, 0, 1], bool)
    expected = ref.masked_softmax(scores[None], allowed[None])[0]
    np.testing.assert_array_equal(past_ref.softmax(scores, allowed, None), expected)

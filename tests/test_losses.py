"""The losses against the references; padding, masks, weights and reductions; fit and saving."""

import keras
import numpy as np
import pytest
import reference_losses as ref
import tensorflow as tf
from backend import BACKEND, assert_allclose, compiled, differentiate, dtype_of, tensor, to_numpy
from conftest import numerical_gradient, rounded
from keras import ops
from other_backends import MODES_HERE

from keras_attention.losses import (
    CoverageLoss,
    DiagonalAlignmentLoss,
    GuidedAlignmentLoss,
    MaskedCrossEntropy,
)

B, T, S, V = 3, 5, 7, 11
# Padded on the right, on the left, and throughout.
IDS = np.array([[3, 10, 1, 0, 0], [0, 4, 4, 2, 9], [0] * 5])


def attention(rng, *shape):
    """Weights that sum to 1 over the last axis."""
    return rng.dirichlet(np.ones(shape[-1]), size=shape[:-1])


def gold_alignment(rng):
    """Links, more than one of them in some rows, and rows without any."""
    gold = rng.integers(0, 2, size=(B, T, S)) * rng.integers(0, 3, size=(B, T, S))
    gold[0, 1] = gold[2] = 0
    gold[0, 0, 0] = gold[1, 3, 2] = 1
    return gold


def pairs():
    source = np.array([[1] * 5 + [0] * 2, [0] + [1] * 6, [1] * 7])
    return (IDS != 0)[:, :, None] * source[:, None, :]


CASES = {
    "cross_entropy": (MaskedCrossEntropy, ref.cross_entropy, {}),
    "smoothed": (MaskedCrossEntropy, ref.cross_entropy, {"label_smoothing": 0.1}),
    "coverage": (CoverageLoss, ref.coverage, {}),
    "guided": (GuidedAlignmentLoss, ref.guided, {}),
    "squared": (GuidedAlignmentLoss, ref.guided, {"kind": "squared"}),
    "diagonal": (DiagonalAlignmentLoss, ref.diagonal, {"width": 0.3}),
}


class Case:
    def __init__(self, name, rng):
        self.make, self.reference, self.arguments = CASES[name]
        ids_of = {"guided": gold_alignment, "squared": gold_alignment}
        self.y_true = pairs() if name == "diagonal" else ids_of.get(name, lambda rng: IDS)(rng)
        logits = self.make is MaskedCrossEntropy
        self.y_pred = 2 * rng.normal(size=(B, T, V)) if logits else attention(rng, B, T, S)

    def loss(self, dtype="float64", **arguments):
        return self.make(**self.arguments, dtype=dtype, **arguments)

    def expected(self, y_pred=None, y_true=None, sample_weight=None):
        names = {"label_smoothing": "smoothing"}
        arguments = {names.get(name, name): value for name, value in self.arguments.items()}
        y_true = self.y_true if y_true is None else y_true
        y_pred = self.y_pred if y_pred is None else y_pred
        return ref.mean(self.reference, y_true, y_pred, sample_weight, **arguments)

    @property
    def real(self):
        return self.y_true != 0 if self.y_true.ndim == 2 else self.y_true.any(-1)


@pytest.fixture(params=list(CASES))
def case(request, rng):
    return Case(request.param, rng)


def test_mean_over_real_steps(case, run, dtype, assert_close):
    """Half precision is computed in float32."""
    y_pred, exact = rounded(case.y_pred, dtype)
    loss = run(case.loss(dtype=None if dtype != "float64" else dtype), case.y_true, y_pred)
    assert loss.shape == ()
    assert dtype_of(loss) == ("float64" if dtype == "float64" else "float32")
    assert_allclose(loss, case.expected(exact), rtol=1e-12 if dtype == "float64" else 2e-6)


def test_gradient(case):
    """Numerically; and none from steps that are not real."""
    loss = case.loss()
    (gradient,) = to_numpy(differentiate(lambda y_pred: loss(case.y_true, y_pred), [case.y_pred]))
    expected = numerical_gradient(lambda x: loss(case.y_true, x), case.y_pred)
    assert_allclose(gradient, expected, rtol=1e-6, atol=1e-8)
    assert (gradient[~case.real] == 0).all()


def value_and_gradient(loss, y_true, y_pred):
    return loss(y_true, y_pred), differentiate(lambda x: loss(y_true, x), [y_pred])[0]


def test_steps_that_are_not_real_may_hold_anything(case, run, rng):
    bad = rng.choice([np.nan, np.inf, -np.inf], size=case.y_pred.shape)
    spoiled = np.where(case.real[..., None], case.y_pred, bad).astype("float32")
    value, gradient = run(
        lambda y, x: value_and_gradient(case.loss("float32"), y, x), case.y_true, spoiled
    )
    assert_allclose(value, case.expected(), rtol=2e-6)
    assert np.isfinite(gradient).all()


@pytest.mark.slow
def test_a_batch_without_real_steps(case, run):
    """Is 0, as is its gradient, and not NaN; and so is one without samples."""
    for reduction in ("sum_over_batch_size", "sum", "mean_with_sample_weight"):
        loss = case.loss("float32", reduction=reduction)
        value, gradient = run(
            lambda y, x, loss=loss: value_and_gradient(loss, y, x),
            np.zeros_like(case.y_true),
            case.y_pred.astype("float32"),
        )
        assert value == 0
        assert (gradient == 0).all()
        assert float(loss(case.y_true[:0], case.y_pred[:0])) == 0


class Carry(keras.layers.Layer):
    """Puts a mask on its output, as Keras does."""

    def __init__(self, mask):
        super().__init__(autocast=False)
        self.mask = mask

    def call(self, inputs):
        return inputs + 0

    def compute_mask(self, inputs, previous_mask):
        return self.mask


def test_implicit_masks(case):
    """A mask that says the same changes nothing; one that says less hides steps as well."""
    y_pred = tensor(case.y_pred)
    same = Carry(tensor(case.real))(y_pred)
    assert same._keras_mask is not None
    assert_allclose(case.loss()(case.y_true, same), case.expected(), rtol=1e-12)

    shorter = case.real.copy()
    shorter[1, 4] = False
    hidden = shorter if case.y_true.ndim == 2 else shorter[..., None]
    assert_allclose(
        case.loss()(case.y_true, Carry(tensor(shorter))(y_pred)),
        case.expected(y_true=case.y_true * hidden),
        rtol=1e-12,
    )


@pytest.mark.parametrize("shape", [(B,), (B, 1), (B, T)], ids=str)
@pytest.mark.parametrize("masked", [False, True])
def test_sample_weights(case, rng, shape, masked):
    weights = rng.random(shape)
    whole = np.broadcast_to(weights[:, None] if len(shape) == 1 else weights, (B, T))
    y_pred = tensor(case.y_pred)
    y_pred = Carry(tensor(case.real))(y_pred) if masked else y_pred
    expected, count = case.expected(sample_weight=whole), case.real.sum()

    def value(reduction):
        return case.loss(reduction=reduction)(case.y_true, y_pred, sample_weight=weights)

    assert_allclose(value("sum_over_batch_size"), expected, rtol=1e-12)
    assert_allclose(value("mean"), expected, rtol=1e-12)
    assert_allclose(value("sum"), expected * count, rtol=1e-12)
    assert_allclose(
        value("mean_with_sample_weight"), expected * count / whole[case.real].sum(), rtol=1e-12
    )
    steps = to_numpy(value(None))
    assert steps.shape == (B, T)
    assert (steps[~case.real] == 0).all()
    assert_allclose(steps.sum(), expected * count, rtol=1e-12)


def test_padding_changes_nothing(case):
    """More padded steps, or samples that are padding throughout."""
    wider = [(0, 1), (0, 2)]
    y_true = np.pad(case.y_true, wider + [(0, 0)] * (case.y_true.ndim - 2))
    y_pred = np.pad(case.y_pred, [*wider, (0, 0)], constant_values=0.5)
    assert_allclose(case.loss()(y_true, y_pred), case.expected(), rtol=1e-12)


def test_configs(case):
    loss = case.loss(dtype="float64", reduction="sum", name="other")
    config = loss.get_config()
    assert config["reduction"] == "sum" and config["name"] == "other"
    copy = keras.losses.deserialize(keras.losses.serialize(loss))
    assert type(copy) is type(loss) and copy.get_config() == config
    assert float(copy(case.y_true, case.y_pred)) == float(loss(case.y_true, case.y_pred))
    assert set(case.arguments.items()) <= set(config.items())


def test_shapes_that_do_not_fit(case):
    y_true = case.y_true
    for bad in (y_true[:, :-1], y_true[0], y_true[None], y_true[:1]):
        with pytest.raises(ValueError, match="`y_pred` must have three axes.*Received `y_true`"):
            case.loss()(bad, case.y_pred)
    with pytest.raises(ValueError, match="three axes"):
        case.loss()(y_true, case.y_pred[:, 0])
    for shape in [(T,), (B, T + 1), (B, T, 1)]:
        with pytest.raises(ValueError, match="`sample_weight`"):
            case.loss()(y_true, case.y_pred, sample_weight=np.ones(shape))


@pytest.mark.tensorflow_only("sizes that a graph does not know")
def test_unknown_shapes(case):
    spec = [tf.TensorSpec([None] * case.y_true.ndim, "int64"), tf.TensorSpec([None] * 3, "float64")]
    for jit in (False, True):
        function = tf.function(case.loss(), input_signature=spec, jit_compile=jit)
        for part in (slice(None), slice(0, 1)):
            expected = case.expected(case.y_pred[part], case.y_true[part])
            value = function(case.y_true[part], case.y_pred[part])
            assert_allclose(value, expected, rtol=1e-12)


# Cross-entropy


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_cross_entropy_is_that_of_keras(rng, smoothing):
    """Which needs one-hot targets for the smoothing."""
    logits, ids = rng.normal(size=(B, T, V)), rng.integers(1, V, size=(B, T))
    expected = keras.losses.CategoricalCrossentropy(
        from_logits=True, label_smoothing=smoothing, dtype="float64"
    )(np.eye(V)[ids], logits)
    loss = MaskedCrossEntropy(label_smoothing=smoothing, dtype="float64")
    assert_allclose(loss(ids, logits), expected, rtol=1e-12)
    probabilities = keras.ops.softmax(logits)
    loss = MaskedCrossEntropy(label_smoothing=smoothing, from_logits=False, dtype="float64")
    assert_allclose(loss(ids, probabilities), expected, rtol=1e-12)


@pytest.mark.parametrize("pad_token", [0, 2, -1, V + 5, None])
def test_pad_tokens(rng, pad_token):
    """One outside of the vocabulary is never looked up."""
    logits, ids = rng.normal(size=(B, T, V)), rng.integers(0, V, size=(B, T))
    ids[0, 1:3] = 1 if pad_token is None else pad_token
    loss = MaskedCrossEntropy(pad_token=pad_token, dtype="float64")
    expected = ref.mean(ref.cross_entropy, ids, logits, pad_token=pad_token)
    assert_allclose(loss(ids, logits), expected, rtol=1e-12)


def test_ids_are_not_rounded(rng):
    """2049 is no number of float16, and neither are ids made floating on the way."""
    logits = rng.normal(size=(1, 2, 2051)).astype("float32")
    for ids in ([[2049, 0]], [[2049.0, 0.0]]):
        expected = ref.mean(ref.cross_entropy, np.array(ids), logits)
        loss = MaskedCrossEntropy(dtype="float16")(np.array(ids), logits)
        assert_allclose(loss, expected, rtol=1e-6)


def test_extreme_logits(run):
    """Forbidden tokens have logits of -inf; huge logits keep the loss and gradient finite."""
    logits = tensor([[[1.0, -np.inf, 2.0], [1e30, -1e30, 0.0], [3e4, 0.0, -3e4]]])
    value, gradient = run(
        lambda x: value_and_gradient(MaskedCrossEntropy(reduction="sum"), [[2, 1, 1]], x), logits
    )
    assert_allclose(value, np.log1p(np.exp(-1)) + 2e30 + 3e4, rtol=1e-6)
    assert np.isfinite(gradient).all()


@pytest.mark.tensorflow_only("errors that a graph raises when it runs")
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("bad", [V, -1, 2**30])
def test_ids_outside_of_the_vocabulary(rng, bad, smoothing):
    """An error that names the id where one can be raised, NaN elsewhere; never a wrong number."""
    logits, ids = rng.normal(size=(1, 2, V)).astype("float32"), np.array([[1, bad]])
    loss = MaskedCrossEntropy(smoothing)
    for function in (loss, tf.function(loss)):
        with pytest.raises(tf.errors.InvalidArgumentError, match=f"{bad}"):
            function(ids, logits)


@pytest.mark.skipif(BACKEND == "torch", reason=MODES_HERE["torch"]["xla"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("bad", [V, -1, 2**30])
def test_ids_outside_of_the_vocabulary_under_xla(rng, bad, smoothing):
    logits, ids = rng.normal(size=(1, 2, V)).astype("float32"), np.array([[1, bad]])
    loss = compiled(MaskedCrossEntropy(smoothing), jit_compile=True)
    assert np.isnan(to_numpy(loss(tensor(ids), tensor(logits))))


def test_errors():
    for bad in (-0.1, 1.0, np.nan, "0.1"):
        with pytest.raises(ValueError, match="`label_smoothing`"):
            MaskedCrossEntropy(label_smoothing=bad)
    with pytest.raises(ValueError, match="`kind`.*'mse'"):
        GuidedAlignmentLoss(kind="mse")
    for bad in (0, -1, np.inf, "1"):
        with pytest.raises(ValueError, match="`width`"):
            DiagonalAlignmentLoss(width=bad)
    with pytest.raises(ValueError, match="reduction"):
        MaskedCrossEntropy(reduction="average")


# Alignment


def test_coverage_by_hand():
    """Looking twice at the same place costs what is looked at twice."""
    weights = np.array([[[1, 0], [1, 0], [0, 1], [0.5, 0.5]]])
    steps = CoverageLoss(reduction=None)(np.ones((1, 4)), weights)
    assert to_numpy(steps).tolist() == [[0, 1, 0, 1]]
    # A padded step in front is not looked at.
    steps = CoverageLoss(reduction=None)(np.array([[0, 1, 1, 1]]), weights)
    assert to_numpy(steps).tolist() == [[0, 0, 0, 1]]


def test_guided_alignment_has_its_least_value_at_the_gold(rng):
    gold = gold_alignment(rng)[:2] + np.eye(T, S)
    rows = gold / gold.sum(-1, keepdims=True)
    for kind in ("cross_entropy", "squared"):
        loss = GuidedAlignmentLoss(kind)
        best = float(loss(gold, rows))
        for _ in range(20):
            assert float(loss(gold, attention(rng, 2, T, S))) > best
    assert best == 0


@pytest.mark.parametrize("half", ["float16", "bfloat16", "float32"])
def test_weights_of_zero_on_a_link(half):
    """Keep loss and gradients finite, in the dtype of the weights."""
    weights = ops.cast([[[1.0, 0.0], [1 - 1e-6, 1e-6]]], half)
    value, gradient = value_and_gradient(GuidedAlignmentLoss(), [[[0, 1], [0, 1]]], weights)
    assert dtype_of(gradient) == half
    assert np.isfinite(value) and np.isfinite(to_numpy(gradient)).all()


# In models


@keras.saving.register_keras_serializable(package="test_losses")
class Weights(keras.layers.Layer):
    """Attention weights, which carry no mask."""

    def call(self, query, memory):
        return keras.ops.softmax(keras.ops.einsum("btd,bsd->bts", query, memory))


def two_outputs():
    """A model that gives logits, with a mask, and attention weights."""
    source = keras.Input((None,), dtype="int32", name="source")
    target = keras.Input((None,), dtype="int32", name="target")
    memory = keras.layers.Embedding(V, 8)(source)
    query = keras.layers.Embedding(V, 8, mask_zero=True)(target)
    weights = Weights(name="weights")(query, memory)
    return keras.Model(
        [source, target], {"logits": keras.layers.Dense(V)(query), "weights": weights}
    )


def batch(rng):
    source, target = rng.integers(1, V, size=(8, S)), rng.integers(1, V, size=(8, T))
    for row, length in enumerate(rng.integers(1, T, size=8)):
        target[row, length:] = 0
    gold = rng.integers(0, 2, size=(8, T, S))
    return [source, target], {"logits": target, "weights": gold}


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["float32", "mixed_float16"])
def test_fit_save_and_load(rng, tmp_path, policy):
    keras.config.set_dtype_policy(policy)
    try:
        model = two_outputs()
    finally:
        keras.config.set_dtype_policy("float32")
    losses = {"logits": MaskedCrossEntropy(0.1), "weights": GuidedAlignmentLoss("squared")}
    optimizer = keras.optimizers.Adam(0.03)
    if policy == "mixed_float16":
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
    model.compile(optimizer, losses, loss_weights={"logits": 1.0, "weights": 0.5})
    x, y = batch(rng)
    history = model.fit(x, y, epochs=6, batch_size=4, verbose=0).history["loss"]
    assert np.isfinite(history).all() and history[-1] < history[0]

    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert type(loaded.loss["logits"]) is MaskedCrossEntropy
    assert loaded.loss["logits"].label_smoothing == 0.1
    assert loaded.loss["weights"].kind == "squared"
    expected = model.evaluate(x, y, batch_size=8, verbose=0)
    assert_allclose(loaded.evaluate(x, y, batch_size=8, verbose=0), expected, rtol=1e-6)
    if policy == "float32":
        predicted = {name: to_numpy(value) for name, value in model(x).items()}
        logits = ref.mean(ref.cross_entropy, y["logits"], predicted["logits"], smoothing=0.1)
        guided = ref.mean(ref.guided, y["weights"], predicted["weights"], kind="squared")
        assert_allclose(expected[0], logits + 0.5 * guided, rtol=1e-5)


def test_fit_by_hand_in_two_batches(rng):
    """Keras averages the means of the batches, weighted by their samples; "sum" is exact."""
    x, y = batch(rng)
    model = two_outputs()
    logits = to_numpy(model(x)["logits"])
    for reduction in ("sum_over_batch_size", "sum"):
        loss = MaskedCrossEntropy(reduction=reduction)
        model.compile(loss={"logits": loss, "weights": None})
        means = [
            ref.mean(ref.cross_entropy, y["logits"][part], logits[part])
            * ((y["logits"][part] != 0).sum() if reduction == "sum" else 1)
            for part in (slice(0, 6), slice(6, 8))
        ]
        expected = (6 * means[0] + 2 * means[1]) / 8
        found = model.evaluate(x, {"logits": y["logits"]}, batch_size=6, verbose=0)
        assert_allclose(np.ravel(found)[0], expected, rtol=1e-5)

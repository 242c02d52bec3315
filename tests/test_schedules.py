"""Learning rates against the equations, and in optimizers that are trained and saved."""

import keras
import numpy as np
import pytest
from backend import assert_allclose, dtype_of, tensor
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_schedules import paper, warmup_cosine

from keras_attention.schedules import InverseSquareRoot, WarmupCosine

SCHEDULES = [InverseSquareRoot(0.3, 7), WarmupCosine(0.3, 7, 31, floor=0.2)]


@pytest.fixture(params=SCHEDULES, ids=lambda schedule: type(schedule).__name__)
def schedule(request):
    return request.param


@pytest.mark.parametrize("d_model, warmup_steps", [(512, 4000), (64, 1)])
def test_inverse_square_root_is_that_of_the_paper(run, d_model, warmup_steps):
    numbers = np.r_[1:50, 3990:4010, 16000, 100_000]
    schedule = InverseSquareRoot((d_model * warmup_steps) ** -0.5, warmup_steps)
    rates = run(schedule, numbers - 1)
    expected = [paper(float(n), d_model, warmup_steps) for n in numbers]
    assert_allclose(rates, expected, rtol=1e-6)


@pytest.mark.parametrize("floor", [0.0, 0.05, 1.0])
def test_warmup_cosine(run, floor):
    numbers = np.arange(1, 120)
    rates = run(WarmupCosine(0.002, 11, 97, floor), numbers - 1)
    expected = [warmup_cosine(n, 0.002, 11, 97, floor) for n in numbers]
    assert_allclose(rates, expected, rtol=1e-5, atol=1e-9)


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 40), st.integers(1, 40), st.floats(0, 1), st.floats(1e-5, 10))
def test_up_to_the_peak_and_down(warmup, more, floor, peak):
    steps = np.arange(warmup + more + 5)
    for schedule, last in (
        (WarmupCosine(peak, warmup, warmup + more, floor), floor * peak),
        (InverseSquareRoot(peak, warmup), peak * (warmup / len(steps)) ** 0.5),
    ):
        rates = np.asarray(schedule(steps), "float64")
        assert_allclose(rates[warmup - 1], peak, rtol=1e-6)
        assert rates.max() <= peak * (1 + 1e-6) and rates.min() >= 0 and rates[0] > 0
        assert (np.diff(rates[:warmup]) > 0).all()
        assert (np.diff(rates[warmup - 1 :]) <= 1e-6 * peak).all()
        assert_allclose(rates[-1], last, rtol=1e-5, atol=1e-6 * peak)


def test_the_rates_of_a_training(schedule):
    """The n-th update takes the n-th rate: with a gradient of 1, the weight falls by it."""
    optimizer = keras.optimizers.SGD(schedule)
    weight = keras.Variable(0.0)
    optimizer.build([weight])
    for n in range(1, 41):
        before = float(weight)
        optimizer.apply([tensor(1.0)])
        if isinstance(schedule, InverseSquareRoot):
            expected = 0.3 * min(n / 7, (7 / n) ** 0.5)
        else:
            expected = warmup_cosine(n, 0.3, 7, 31, 0.2)
        assert before - float(weight) == pytest.approx(expected, rel=1e-4)


def test_saved_with_the_optimizer(schedule, tmp_path):
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(schedule), "mse", jit_compile=False)
    model.fit(np.ones((6, 1)), np.ones((6, 1)), batch_size=2, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras").optimizer
    assert int(loaded.iterations) == 3
    assert float(loaded.learning_rate) == float(schedule(3)) == float(model.optimizer.learning_rate)
    restored = keras.optimizers.deserialize(keras.optimizers.serialize(model.optimizer))
    assert restored.get_config() == model.optimizer.get_config()
    assert type(schedule).from_config(schedule.get_config()).get_config() == schedule.get_config()


def test_rates_stay_exact_where_floats_are_half(schedule):
    keras.config.set_floatx("float16")
    try:
        assert dtype_of(schedule(np.array(5000))) == "float32"
    finally:
        keras.config.set_floatx("float32")


@pytest.mark.parametrize(
    ("message", "make"),
    [
        *(
            (
                r"`peak` must be a positive number. Received",
                lambda bad=bad, kind=kind, more=more: kind(bad, *more),
            )
            for bad in (0, -1.0, np.nan, np.inf, "1", None, True)
            for kind, more in ((InverseSquareRoot, (4,)), (WarmupCosine, (4, 8)))
        ),
        ("`warmup_steps` must be a positive", lambda: InverseSquareRoot(1.0, 0)),
        ("`warmup_steps` must be a positive", lambda: WarmupCosine(1.0, 2.5, 9)),
        ("`steps` must be a positive", lambda: WarmupCosine(1.0, 2, "9")),
        ("above `warmup_steps`. Received 4 and 4", lambda: WarmupCosine(1.0, 4, 4)),
        *(
            (r"`floor` must be a number in \[0, 1\]", lambda bad=bad: WarmupCosine(1.0, 4, 8, bad))
            for bad in (-0.1, 1.1, np.nan, None, "0")
        ),
    ],
)
def test_errors(message, make):
    with pytest.raises(ValueError, match=message):
        make()

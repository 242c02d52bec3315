"""Encoder and decoder block: the papers' numbers, masks, causality, weights, Keras around them."""

import copy
import json

import keras
import numpy as np
import pytest
import reference_transformer as ref
import tensorflow as tf
from backend import assert_allclose, compiled, differentiate, dtype_of, tensor, to_numpy
from conftest import MODES, numerical_gradient, rounded
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import ops
from transformer_models import block_weights, feed_forward_weights, randomise

from keras_attention.layers.feed_forward import ACTIVATIONS, FeedForward
from keras_attention.layers.outputs import attention_model, attention_scores_model
from keras_attention.layers.residual import Residual
from keras_attention.layers.transformer import TransformerDecoderBlock, TransformerEncoderBlock

B, T, S, D, Dm, N, F = 2, 5, 7, 6, 11, 3, 13

# Half precision rounds each projection, to 2^-11 (float16) or 2^-8 (bfloat16), and each sum.
TOLERANCES = {"float64": 1e-11, "float32": 2e-5, "mixed_float16": 3e-2, "mixed_bfloat16": 2e-1}
KINDS = [TransformerEncoderBlock, TransformerDecoderBlock]
both_kinds = pytest.mark.parametrize("kind", KINDS, ids=["encoder", "decoder"])

X_MASK = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], bool)
MEMORY_MASK = np.array([[1] * 7, [1, 1, 1, 0, 0, 0, 0]], bool)


def make(kind, built=True, **options):
    block = kind(N, F, **{"dropout": 0.0, **options})
    if built:
        block.build(*shapes(kind))
        randomise(block)
    return block


def shapes(kind):
    return [(None, None, D)] + [(None, None, Dm)] * (kind is TransformerDecoderBlock)


def draw(rng, kind, dtype="float32", steps=T):
    x, memory = rng.normal(size=(B, steps, D)), rng.normal(size=(B, S, Dm))
    arrays = [x, memory][: len(shapes(kind))]
    return [array.astype(dtype) for array in arrays]


def masks_of(kind):
    return {"mask": X_MASK, **({"memory_mask": MEMORY_MASK} if len(shapes(kind)) == 2 else {})}


# The papers' numbers


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("use_bias", [True, False])
def test_feed_forward(rng, activation, use_bias):
    layer = FeedForward(F, activation, use_bias=use_bias, dtype="float64")
    layer.build((None, None, D))
    randomise(layer)
    x = rng.normal(size=(B, T, D))
    weights = feed_forward_weights(layer)
    assert sorted(weights) == ["gate", "inner", "outer"][activation in ref.PLAIN :]
    expected = ref.feed_forward(x, activation, **weights)
    assert_allclose(layer(x), expected, rtol=1e-12, atol=1e-12)
    assert_allclose(layer(x[:, 0]), expected[:, 0], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("normalization", ["layer", "rms"])
@pytest.mark.parametrize("norm_first", [False, True])
def test_residual(rng, normalization, norm_first):
    layer = Residual(normalization, norm_first, epsilon=0.1, dtype="float64")
    layer.build((None, None, D))
    randomise(layer)
    x, function = 0.2 * rng.normal(size=(B, T, D)), np.tanh
    norm = {name.name: np.asarray(name) for name in layer.norm.weights}
    norm = {"gamma": norm.get("gamma", norm.get("scale")), "beta": norm.get("beta")}
    expected = ref.residual(x, function, {**norm, "epsilon": 0.1}, norm_first)
    actual = layer(x, function(np.asarray(layer.enter(x))))
    assert_allclose(actual, expected, rtol=1e-12, atol=1e-12)


LONGEST = "pre-norm, rms, swiglu, no bias"
OPTIONS = {
    "post-norm": {},
    "pre-norm": {"norm_first": True, "activation": "gelu"},
    LONGEST: {
        "norm_first": True,
        "normalization": "rms",
        "activation": "swiglu",
        "use_bias": False,
    },
    "post-norm, rms, key_dim, groups": {
        "normalization": "rms",
        "key_dim": 4,
        "epsilon": 1e-3,
        "attention_options": {"num_key_value_heads": 1},
    },
}


def check_against_reference(rng, kind, options, dtype, run=lambda f, *a: to_numpy(f(*a))):
    """Eager or compiled, with masks and asked for weights or not, equal to the papers."""
    policy = {"float16": "mixed_float16", "bfloat16": "mixed_bfloat16"}.get(dtype, dtype)
    block = make(kind, **options, dtype=policy)
    decoder = kind is TransformerDecoderBlock
    pairs = [rounded(array, dtype) for array in draw(rng, kind, "float64")]
    inputs, exact = zip(*pairs, strict=True)
    weights, masks = block_weights(block), masks_of(kind)
    memory = {}
    if decoder:
        memory_mask = ref.full_mask(X_MASK, MEMORY_MASK)
        memory = {"memory": exact[1], "memory_mask": memory_mask}
    own = ref.full_mask(X_MASK, X_MASK, causal=decoder)
    expected, scores = ref.block(
        exact[0], weights, block.feed_forward.activation, block.norm_first, own, **memory
    )
    actual, *found = run(lambda *x: block(*x, **masks, return_attention_scores=True), *inputs)
    alone = run(lambda *x: block(*x, **masks), *inputs)
    limit = TOLERANCES[policy]
    assert actual.shape == expected.shape
    assert_allclose(actual[X_MASK], expected[X_MASK], rtol=limit, atol=limit)
    assert_allclose(alone, actual, rtol=limit / 10, atol=limit / 10)
    assert len(found) == len(scores) == 1 + decoder
    for a, b in zip(found, scores, strict=True):
        assert_allclose(a, b, rtol=limit, atol=limit)


@both_kinds
@pytest.mark.parametrize("case", OPTIONS)
def test_block_equals_the_papers(rng, kind, case):
    check_against_reference(rng, kind, OPTIONS[case], "float64")


@pytest.mark.slow
@both_kinds
def test_block_in_all_modes_and_dtypes(rng, kind, dtype, run):
    post = kind is TransformerEncoderBlock
    check_against_reference(rng, kind, OPTIONS["post-norm" if post else LONGEST], dtype, run)


@both_kinds
@pytest.mark.parametrize("norm_first", [False, True])
def test_gradients(rng, kind, norm_first):
    block = make(kind, norm_first=norm_first, activation="geglu", dtype="float64")
    inputs = draw(rng, kind, "float64")
    inputs = [x[:, :3] for x in inputs]
    masks = {name: mask[:, :3] for name, mask in masks_of(kind).items()}
    # The first sample's memory is padded to its end as well.
    weight = rng.normal(size=(B, 3, D)) * masks["mask"][..., None]
    for number in range(len(inputs)):

        @compiled
        def loss(x, number=number):
            arguments = [*inputs[:number], x, *inputs[number + 1 :]]
            return keras.ops.sum(block(*arguments, **masks) * tensor(weight))

        x = inputs[number]
        (gradient,) = to_numpy(differentiate(loss, [x]))
        expected = numerical_gradient(lambda x, loss=loss: loss(tensor(x)), x)
        assert_allclose(gradient, expected, rtol=1e-5, atol=1e-7)


# Causality and padding


@both_kinds
@pytest.mark.parametrize("norm_first", [False, True])
def test_no_step_sees_a_later_one(rng, kind, norm_first):
    """Two blocks; the difference is exactly 0, not small."""
    blocks = [make(kind, norm_first=norm_first, attention_options=o) for o in ({}, SLIDING)]
    x, *memory = draw(rng, kind)

    def run(x):
        for block in blocks:
            x = block(x, *memory, use_causal_mask=True)
        return np.asarray(x)

    before = run(x)
    for t in range(1, T):
        changed = x.copy()
        changed[:, t:] = 7.0 * rng.normal(size=changed[:, t:].shape)
        after = run(changed)
        assert np.array_equal(after[:, :t], before[:, :t])
        assert np.abs(after[:, t:] - before[:, t:]).min(axis=-1).max() > 0


SLIDING = {"sliding_window": 3}


def test_masks_by_default(rng):
    """The decoder block is causal unless told otherwise, the encoder block is not."""
    for kind, causal in zip(KINDS, (False, True), strict=True):
        block, inputs = make(kind), draw(rng, kind)
        _, weights, *_ = block(*inputs, return_attention_scores=True)
        assert (np.asarray(weights)[..., 0, 1:] == 0).all() == causal
        _, weights, *_ = block(*inputs, return_attention_scores=True, use_causal_mask=not causal)
        assert (np.asarray(weights)[..., 0, 1:] == 0).all() != causal


@settings(max_examples=8, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    lengths=st.lists(st.integers(0, T), min_size=B, max_size=B),
    memory_lengths=st.lists(st.integers(0, S), min_size=B, max_size=B),
    decoder=st.booleans(),
    garbage=st.sampled_from([np.nan, np.inf, 1e30, 3.0]),
)
def test_padding_changes_nothing(seed, lengths, memory_lengths, decoder, garbage):
    """Whatever stands in padding: nothing but real rows counts, forwards and backwards."""
    block = PADDED[decoder]
    rng = np.random.default_rng(seed)
    x, *memory = draw(rng, KINDS[decoder])
    mask = np.arange(T) < np.array(lengths)[:, None]
    memory_mask = np.arange(S) < np.array(memory_lengths)[:, None]
    masks = {"mask": mask, **({"memory_mask": memory_mask} if decoder else {})}
    clean = results_of(block, x, memory, masks)
    x[~mask] = garbage
    if decoder:
        memory[0][~memory_mask] = garbage
    dirty = results_of(block, x, memory, masks)
    for a, b in zip(clean, dirty, strict=True):
        assert np.isfinite(b).all()
        assert np.array_equal(a, b)
    # One sample without its padding, alone.
    for b in range(B):
        alone = block(
            x[b : b + 1, : lengths[b]],
            *(m[b : b + 1] for m in memory),
            **own_mask(memory_mask, b, decoder),
        )
        assert_allclose(clean[0][b, : lengths[b]], alone[0], rtol=1e-5, atol=1e-5)


def own_mask(memory_mask, b, decoder):
    return {"memory_mask": memory_mask[b : b + 1]} if decoder else {}


PADDED = [make(kind, norm_first=kind is TransformerDecoderBlock) for kind in KINDS]


def results_of(block, x, memory, masks):
    """Output, weights, and the gradients of the real outputs' sum of squares."""
    real = np.asarray(masks["mask"])[..., None]
    gradients = differentiate(
        lambda x: ops.where(real, block(x, *memory, **masks), 0.0) ** 2,
        [x],
        block.trainable_variables,
    )
    return to_numpy([*block(x, *memory, **masks, return_attention_scores=True), *gradients])


@both_kinds
def test_other_samples_do_not_matter(rng, kind):
    block, (x, *memory) = make(kind), draw(rng, kind)
    before = np.asarray(block(x, *memory, **masks_of(kind)))
    x[1] = 100.0
    after = np.asarray(block(x, *memory, **masks_of(kind)))
    assert np.array_equal(before[0], after[0])
    assert not np.array_equal(before[1], after[1])


def test_keras_masks_are_carried(rng):
    """Implicit masks reach both of two blocks, and give what explicit ones give."""
    ids, memory_ids = np.array([[1, 2, 3, 0, 0], [4, 5, 6, 7, 8]]), np.array([[1, 2], [3, 0]])
    embed = keras.layers.Embedding(9, D, mask_zero=True)
    encoders, decoders = ([make(kind, built=False) for _ in "ab"] for kind in KINDS)
    x, memory = embed(ids), embed(memory_ids)
    plain, plain_memory = (tensor(np.asarray(y)) for y in (x, memory))
    memory_mask = memory_ids != 0
    for block in encoders:
        memory, plain_memory = block(memory), block(plain_memory, mask=memory_mask)
        assert_allclose(memory, plain_memory, rtol=1e-6, atol=1e-6)
    for block in decoders:
        x, own, cross = block(x, memory, return_attention_scores=True)
        assert (np.asarray(cross)[1, ..., 1] == 0).all()
        plain = block(plain, plain_memory, mask=ids != 0, memory_mask=memory_mask)
        assert_allclose(x, plain, rtol=1e-6, atol=1e-6)
        assert np.array_equal(x._keras_mask, ids != 0)
        assert np.array_equal(plain._keras_mask, ids != 0)
        assert getattr(own, "_keras_mask", None) is None
    assert np.array_equal(memory._keras_mask, memory_mask)
    # With another tensor beside x, Keras hands its mask on under another name.
    block, x = encoders[0], embed(ids)
    everything = np.ones((B, T, T), bool)
    assert_allclose(block(x, attention_mask=everything), block(x), rtol=1e-6, atol=1e-6)
    # An explicit mask replaces the implicit one.
    every = block(x, mask=np.ones_like(ids, bool))
    assert_allclose(every, block(tensor(np.asarray(x))), rtol=1e-6, atol=1e-6)


def test_attention_mask_and_bias(rng):
    """They reach the self-attention, of both blocks."""
    allowed = np.tril(np.ones((1, T, T), bool)) & (rng.random((B, T, T)) < 0.7) | np.eye(
        T, dtype=bool
    )
    bias = np.where(allowed, 0.0, -np.inf).astype("float32")
    for kind in KINDS:
        for policy in ("float32", "mixed_float16"):
            block, inputs = make(kind, dtype=policy), draw(rng, kind)
            masked, own, *_ = block(*inputs, attention_mask=allowed, return_attention_scores=True)
            assert (np.asarray(own)[~np.repeat(allowed[:, None], N, 1)] == 0).all()
            assert_allclose(block(*inputs, attention_bias=bias), masked, atol=2e-3)
    # A large bias is not cast to half precision, where -1e5 is -inf.
    block, inputs = make(TransformerEncoderBlock, dtype="mixed_float16"), draw(rng, KINDS[0])
    shifted = block(*inputs, attention_bias=np.full((1, T, T), -1e5, "float32"))
    assert_allclose(shifted, block(*inputs), atol=2e-2)


def test_positions_reach_the_self_attention(rng):
    block = make(TransformerEncoderBlock, attention_options={"position": "rotary"}, key_dim=4)
    (x,) = draw(rng, TransformerEncoderBlock)
    assert_allclose(block(x, positions=np.arange(T) + 40), block(x), atol=1e-4)
    assert np.abs(block(x, positions=np.arange(T) * 2) - block(x)).max() > 1e-2


# Weights on demand


@pytest.mark.slow
@both_kinds
def test_a_functional_model_shows_the_weights_of_each_attention(rng, kind, tmp_path):
    decoder = kind is TransformerDecoderBlock
    inputs = [keras.Input((None, size), name=name) for name, size in (("x", D), ("m", Dm))]
    inputs = inputs[: 1 + decoder]
    x = inputs[0]
    for number in (1, 2):
        x = make(kind, built=False, name=f"block_{number}")(x, *inputs[1:])
    model = keras.Model(inputs, keras.layers.Dense(2)(x))
    arrays = draw(rng, kind)
    names = [f"block_{n}/{part}" for n in (1, 2) for part in ["self", "cross"][: 1 + decoder]]
    found = attention_scores_model(model)(arrays)
    assert sorted(found) == sorted(names)
    _, *direct = model.get_layer("block_1")(*arrays, return_attention_scores=True)
    for name, weights in zip(names, direct, strict=False):
        assert_allclose(found[name], weights, rtol=1e-6, atol=1e-6)
    outputs, weights = attention_model(model, names[-1])(arrays)
    assert_allclose(outputs, model(arrays), rtol=1e-6, atol=1e-6)
    assert weights.shape == (B, N, T, S if decoder else T)
    with pytest.raises(ValueError, match="'block_1/self'.* Received: 'block_1'"):
        attention_model(model, "block_1")

    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert_allclose(loaded(arrays), model(arrays), rtol=1e-6, atol=1e-6)
    again = attention_scores_model(loaded)(arrays)
    assert_allclose(again[names[-1]], weights, rtol=1e-6, atol=1e-6)
    copied = keras.models.clone_model(model)
    copied.set_weights(model.get_weights())
    assert_allclose(copied(arrays), model(arrays), rtol=1e-6, atol=1e-6)


# Dropout


@both_kinds
def test_dropout(rng, kind):
    inputs = draw(rng, kind)
    plain = make(kind)
    block = make(kind, dropout=0.5, attention_dropout=0.5, seed=3)
    twin = make(kind, dropout=0.5, attention_dropout=0.5, seed=3)
    assert np.array_equal(block(*inputs), plain(*inputs))
    assert np.array_equal(block(*inputs, training=False), plain(*inputs))
    first, second = (np.asarray(block(*inputs, training=True)) for _ in "ab")
    assert np.abs(first - second).max() > 1e-2
    assert np.array_equal(twin(*inputs, training=True), first)
    # The weights are those before dropout.
    for a, b in zip(
        block(*inputs, training=True, return_attention_scores=True)[1:2],
        plain(*inputs, return_attention_scores=True)[1:2],
        strict=True,
    ):
        assert_allclose(a, b, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("place", ["dropout", "attention_dropout"])
def test_each_dropout_alone_has_an_effect(rng, place):
    block, (x,) = make(TransformerEncoderBlock, **{place: 0.5}), draw(rng, KINDS[0])
    assert np.abs(to_numpy(block(x, training=True)) - to_numpy(block(x))).max() > 1e-2


def test_no_two_dropouts_of_a_block_drop_the_same():
    block = make(TransformerDecoderBlock, dropout=0.1, attention_dropout=0.1, seed=4)
    seeds = [
        tuple(np.asarray(v).tolist()) for v in block.non_trainable_variables if "seed" in v.path
    ]
    assert len(seeds) == len(set(seeds)) == 6


# Keras around the blocks


@both_kinds
def test_config(rng, kind):
    options = {
        "key_dim": 4,
        "activation": "swiglu",
        "normalization": "rms",
        "norm_first": True,
        "dropout": 0.2,
        "attention_dropout": 0.3,
        "use_bias": False,
        "attention_options": {
            "num_key_value_heads": 1,
            "kernel_initializer": keras.initializers.HeNormal(seed=1),
        },
        "epsilon": 1e-4,
        "seed": 7,
    }
    if kind is TransformerDecoderBlock:
        options["cross_attention_options"] = {"value_dim": 5}
    block = make(kind, built=False, **options)
    config = json.loads(json.dumps(block.get_config()))
    for name in ("key_dim", "activation", "epsilon", "seed", "norm_first"):
        assert config[name] == options[name]
    block.build(*shapes(kind))
    randomise(block)
    assert json.loads(json.dumps(block.get_config())) == config
    other = kind.from_config(config)
    assert json.loads(json.dumps(other.get_config())) == config
    other.build(*shapes(kind))
    other.set_weights(block.get_weights())
    inputs = draw(rng, kind)
    assert np.array_equal(block(*inputs), other(*inputs))
    copied = copy.deepcopy(block)
    assert np.array_equal(block(*inputs), copied(*inputs))
    copied.trainable_variables[0].assign_add(
        keras.ops.ones_like(copied.trainable_variables[0].value)
    )
    assert not np.array_equal(block(*inputs), copied(*inputs))


def test_without_cross_attention(rng):
    """A causal language model's block: the encoder block with a causal mask."""
    block = make(TransformerEncoderBlock)
    causal = TransformerDecoderBlock(N, F, dropout=0.0, cross_attention=False)
    causal.build((None, None, D))
    causal.set_weights(block.get_weights())
    (x,) = draw(rng, TransformerEncoderBlock)
    assert np.array_equal(causal(x), block(x, use_causal_mask=True))
    _, weights = causal(x, return_attention_scores=True)
    assert weights.shape == (B, N, T, T)
    again = TransformerDecoderBlock.from_config(causal.get_config())
    assert again.attentions == ("self",)
    x = keras.Input((None, D))
    assert keras.Model(x, again(x)).output_shape == (None, None, D)


@both_kinds
def test_projected_memory_and_several_lengths(rng, kind):
    block = make(kind)
    for steps in (1, T, 9):
        inputs = draw(rng, kind, steps=steps)
        assert block(*inputs).shape == (B, steps, D)
        assert block.compute_output_shape(*(x.shape for x in inputs)) == (B, steps, D)
        if kind is TransformerDecoderBlock:
            projected = block.precompute(inputs[1], MEMORY_MASK)
            assert_allclose(
                block(inputs[0], projected_memory=projected),
                block(*inputs, memory_mask=MEMORY_MASK),
                rtol=1e-5,
                atol=1e-5,
            )


@both_kinds
def test_unknown_batch_and_time_and_an_empty_batch(rng, kind, mode):
    block = make(kind)
    inputs = draw(rng, kind)
    specs = [tf.TensorSpec((None, None, x.shape[-1])) for x in inputs]
    masks = [tf.TensorSpec((None, None), "bool") for _ in inputs]
    names = ["mask", "memory_mask"][: len(inputs)]

    def call(tensors, masks):
        return block(*tensors, **dict(zip(names, masks, strict=True)), return_attention_scores=True)

    function = MODES[mode](call)
    if mode != "eager":
        function = compiled(call, mode == "xla", [specs, masks])
    given_masks = [tensor(mask) for mask in masks_of(kind).values()]
    results = to_numpy(function([tensor(x) for x in inputs], given_masks))
    expected = block(*inputs, **masks_of(kind), return_attention_scores=True)
    for a, b in zip(results, expected, strict=True):
        assert_allclose(a, b, rtol=1e-5, atol=1e-5)
    empty = function([tensor(x[:0]) for x in inputs], [tensor(mask[:0]) for mask in given_masks])
    assert empty[0].shape == (0, T, D)
    assert empty[1].shape == (0, N, T, T)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "jit"), zip(KINDS, (False, True), strict=True))
def test_it_learns(rng, kind, jit):
    inputs = [keras.Input((None, x.shape[-1])) for x in draw(rng, kind)]
    block = make(kind, built=False, dropout=0.1, attention_dropout=0.1)
    model = keras.Model(inputs, keras.layers.Dense(1)(block(*inputs)))
    model.compile(keras.optimizers.Adam(0.01), "mse", jit_compile=jit)
    arrays = draw(rng, kind)
    target = arrays[0][..., :1]
    losses = model.fit(arrays, target, epochs=20, verbose=0).history["loss"]
    assert losses[-1] < losses[0] / 2


@both_kinds
@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
@pytest.mark.parametrize("norm_first", [False, True])
def test_half_precision_is_finite_at_large_activations(rng, kind, policy, norm_first):
    block = make(kind, dtype=policy, norm_first=norm_first, normalization="rms")
    x, *memory = draw(rng, kind)
    x = tensor(3000.0 * x)
    output = block(x, *memory, **masks_of(kind))
    gradients = differentiate(
        lambda: ops.cast(block(x, *memory, **masks_of(kind)), "float32") / 1000.0,
        variables=block.trainable_variables,
    )
    assert dtype_of(output) == policy.removeprefix("mixed_")
    assert np.isfinite(to_numpy(output)).all()
    assert all(np.isfinite(g).all() for g in to_numpy(gradients))


# Bad input


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_heads": 0}, "`num_heads` must be a positive integer"),
        ({"feedforward_size": 2.5}, "`feedforward_size` must be a positive integer"),
        ({"key_dim": -1}, "`key_dim`"),
        ({"activation": "tanhh"}, "`activation` must be one of 'relu', 'gelu'.*'tanhh'"),
        ({"normalization": "batch"}, "`normalization` must be one of 'layer', 'rms'.*'batch'"),
        ({"dropout": 1.0}, "`dropout` must lie"),
        ({"attention_dropout": -0.1}, "`attention_dropout` must lie"),
        ({"norm_first": 1}, "`norm_first` must be True or False"),
        ({"use_bias": None}, "`use_bias` must be True or False"),
        ({"attention_options": {"num_heads": 2}}, "`attention_options` must be.*other than"),
        ({"attention_options": 3}, "`attention_options` must be a dictionary"),
    ],
)
@both_kinds
def test_bad_arguments(kind, options, message):
    with pytest.raises(ValueError, match=message):
        kind(**{"num_heads": N, "feedforward_size": F, **options})


def test_bad_arguments_of_the_decoder_block():
    with pytest.raises(ValueError, match="`cross_attention` must be True or False"):
        TransformerDecoderBlock(N, F, cross_attention="yes")
    options = {"value_dim": 4}
    with pytest.raises(ValueError, match="`cross_attention_options` need"):
        TransformerDecoderBlock(N, F, cross_attention=False, cross_attention_options=options)


@both_kinds
def test_bad_input(rng, kind):
    x, *memory = draw(rng, kind)
    with pytest.raises(ValueError, match="`num_heads` = 4 must divide .* 6 features"):
        kind(4, F)(x, *memory)
    block = make(kind)
    with pytest.raises(ValueError, match=r"`x` must have shape \[B, T, 6\].*\(2, 5, 4\)"):
        block(x[..., :4], *memory)
    with pytest.raises(ValueError, match="`mask` must have shape"):
        block(x, *memory, mask=X_MASK[:, :3])
    with pytest.raises(ValueError, match="`mask` must be boolean"):
        block(x, *memory, mask=X_MASK.astype("float32"))
    with pytest.raises(ValueError, match="`x` must be floating"):
        block(x.astype("int32"), *memory)
    with pytest.raises(ValueError, match="`x` must have shape"):
        kind(N, F).build((None, None, None))


def test_a_memory_where_none_belongs_and_none_where_one_does(rng):
    x, memory = draw(rng, TransformerDecoderBlock)
    block = make(TransformerDecoderBlock)
    with pytest.raises(ValueError, match="needs either `memory`.*neither"):
        block(x)
    with pytest.raises(ValueError, match="needs either `memory`.*both"):
        block(x, memory, projected_memory=block.precompute(memory))
    with pytest.raises(ValueError, match="must be built with the shape of its memory"):
        TransformerDecoderBlock(N, F)(x)
    alone = TransformerDecoderBlock(N, F, cross_attention=False)
    with pytest.raises(ValueError, match="`cross_attention=False` takes no memory"):
        alone(x, memory)
    with pytest.raises(ValueError, match="`cross_attention=False` takes no memory"):
        alone.precompute(memory)
    with pytest.raises(ValueError, match="`memory_mask`|`value_mask`"):
        block(x, memory, memory_mask=MEMORY_MASK[:, :3])

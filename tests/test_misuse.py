"""What is easily got wrong with transformers, and the errors that say so."""

import numpy as np
import pytest

from keras_attention import (
    CharacterTokenizer,
    MultiHeadAttention,
    SinkSoftmax,
    language_batches,
    text_batches,
    transformer,
)

LETTERS = CharacterTokenizer.fit(["abc"])


@pytest.fixture
def x(rng):
    return rng.normal(size=(2, 7, 16)).astype("float32")


def test_sinks_neither_warn_about_masks_nor_pass_them_on(x, recwarn):
    layer = MultiHeadAttention(2, 4, normalizer=SinkSoftmax())
    _, weights = layer(x, use_causal_mask=True, return_attention_scores=True)
    assert not [w for w in recwarn if "mask" in str(w.message)]
    assert getattr(weights, "_keras_mask", None) is None


def test_sinks_of_other_heads(x):
    sinks = SinkSoftmax()
    MultiHeadAttention(2, 4, normalizer=sinks)(x)
    with pytest.raises(ValueError, match=r"built for 2 heads.*\(2, 4, 7, 7\)"):
        MultiHeadAttention(4, 4, normalizer=sinks)(x)


def test_a_rotary_cache_of_another_batch(x):
    layer = MultiHeadAttention(4, 4, position="rotary")
    layer(x)
    with pytest.raises(ValueError, match=r"`cache`.*\(3, 4, 0, 4\).*batch of 2"):
        layer(x, cache=layer.start_cache(3))


@pytest.mark.parametrize("batch_size", [-1, "a", 2.5])
def test_a_cache_for_no_batch(batch_size):
    with pytest.raises(ValueError, match="`batch_size`"):
        MultiHeadAttention(4, 4).start_cache(batch_size)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"mask_function": lambda b, h, q, k: (q >= k)[..., :2]}, r"`mask_function`.*1, 7, 2\)"),
        ({"mask_function": lambda b, h, q, k: None}, "`mask_function` must return a tensor"),
        ({"score_modifier": lambda *_: None}, "`score_modifier` must return a tensor"),
        ({"score_modifier": lambda scores, *_: scores > 0}, "`score_modifier`.*bool"),
    ],
)
def test_functions_that_return_something_else(x, options, words):
    with pytest.raises(ValueError, match=words):
        MultiHeadAttention(4, 4, **options)(x)


def test_one_embedding_for_tokens_that_differ():
    others = CharacterTokenizer.fit(["xyz"])
    with pytest.raises(ValueError, match="tokens are the first of the source's"):
        transformer(LETTERS, others, layers=1, units=8, num_heads=2, tied_embeddings="all")


def test_the_length_that_is_advised_fits():
    def batches(**options):
        return text_batches(
            ["abca", "a"], ["b", "c"], LETTERS, LETTERS, tokens_per_batch=6, **options
        )

    with pytest.raises(ValueError, match="`max_length=3` leaves those out"):
        batches(length_multiple=4)
    (source, target), labels = next(iter(batches(length_multiple=4, max_length=3)))
    assert source.shape == target.shape == labels.shape == (1, 4)


@pytest.mark.parametrize("multiple", [None, 1, 4])
def test_rounded_lengths_leave_the_texts_as_they_are(multiple):
    texts = ["a" * n for n in range(1, 12)]
    batches = text_batches(
        texts, texts, LETTERS, LETTERS, tokens_per_batch=24, shuffle=False, length_multiple=multiple
    )
    seen, shapes = [], set()
    for (source, target), labels in batches:
        seen += LETTERS.decode(source).numpy().tolist()
        shapes |= {source.shape[1], target.shape[1], labels.shape[1]}
        assert source.shape[0] * max(source.shape[1], target.shape[1]) <= 24
    assert sorted(seen) == sorted(text.encode() for text in texts)
    assert all(size % (multiple or 1) == 0 for size in shapes)


@pytest.mark.parametrize(
    ("options", "name"),
    [({"max_length": 0}, "max_length"), ({"length_multiple": 0}, "length_multiple")],
)
def test_bad_sizes_of_batches(options, name):
    with pytest.raises(ValueError, match=f"`{name}`"):
        text_batches(["a"], ["b"], LETTERS, LETTERS, **options)


def test_batches_without_a_tokenizer():
    with pytest.raises(ValueError, match="`target_tokenizer`.*None"):
        text_batches(["a"], ["b"], LETTERS, None)


@pytest.mark.parametrize("ids", [[2**40 + 3, 1, 2], [1, -2, 3]])
def test_ids_that_are_none(ids):
    with pytest.raises(ValueError, match="`ids` must lie in 0"):
        language_batches(np.array(ids), 2)


def test_layers_among_the_options_are_each_blocks_own():
    model = transformer(
        20, 20, layers=2, units=8, num_heads=2, attention_options={"normalizer": SinkSoftmax()}
    )
    sinks = [w for w in model.trainable_weights if w.name == "sinks"]
    assert len(sinks) == 4 == len({id(w) for w in sinks})
    again = type(model).from_config(model.get_config())
    assert again.count_params() == model.count_params()

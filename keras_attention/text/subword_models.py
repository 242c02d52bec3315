"""SentencePiece models as bytes: trained, and their pieces put in another order."""

import io
import re

from keras_attention.text.tokenizer import END, PAD, START, UNKNOWN, UNKNOWN_TEXT

# Code points that Unicode sets aside for internal use: "<s>" in a text is not taken for one.
SPECIAL_PIECES = {
    "pad_piece": "\ufdd2",
    "bos_piece": "\ufdd3",
    "eos_piece": "\ufdd4",
    "unk_piece": "\ufdd5",
}
# What SentencePiece allows at least.
SHORTEST_LIMIT = 10


def missing_package(name):
    """The error that says how to install what subwords, ids `[B, L]`, are made with."""
    return ImportError(f"SubwordTokenizer needs {name}: pip install keras-attention-layers[text]")


def train_model(texts, **options):
    """Trains a SentencePiece model.

    Args:
        texts: list of bytes, as the model is to see them.
        **options: of the trainer: `vocab_size`, `model_type`, ...

    Returns:
        The model as bytes, of V ids, the special ones first.

    Raises:
        ValueError: if there is no text, or too few for that many ids.
        ImportError: if `sentencepiece` is not installed.
    """
    try:
        import sentencepiece
    except ImportError as error:
        raise missing_package("sentencepiece") from error
    texts = [text for text in texts if text]
    if not texts:
        raise ValueError("texts must hold a text that is not empty. Got none")
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(texts),
            model_writer=model,
            pad_id=PAD,
            bos_id=START,
            eos_id=END,
            unk_id=UNKNOWN,
            unk_surface=UNKNOWN_TEXT,
            **SPECIAL_PIECES,
            normalization_rule_name="identity",
            add_dummy_prefix=False,
            remove_extra_whitespaces=False,
            max_sentence_length=max(SHORTEST_LIMIT, *map(len, texts)),
            num_threads=4,  # The sums, and so the model, depend on their number.
            minloglevel=2,
            **options,
        )
    except RuntimeError as error:
        problem = _explain(str(error), options["vocab_size"])
        raise ValueError(f"vocabulary_size must be {problem}") from error
    return model.getvalue()


def reorder_pieces(model, order):
    """A model with its pieces in another order. (Scores, not ids, decide how a text is split.)

    Args:
        model: the model as bytes.
        order: `[V]` the old id of each new one.

    Returns:
        The model as bytes.
    """
    from sentencepiece import sentencepiece_model_pb2

    proto = sentencepiece_model_pb2.ModelProto.FromString(model)
    pieces = [sentencepiece_model_pb2.ModelProto.SentencePiece() for _ in order]
    for piece, old in zip(pieces, order, strict=True):
        piece.CopyFrom(proto.pieces[old])
    del proto.pieces[:]
    proto.pieces.extend(pieces)
    return proto.SerializeToString()


def _explain(message, size):
    if limit := re.search(r"size too high.*<= (\d+)", message):
        return f"at most {limit[1]} for these texts, which hold no more subwords. Got {size}"
    if limit := re.search(r"smaller than required_chars\. \d+ vs (\d+)", message):
        return (
            f"at least {limit[1]} for these texts, to hold each of their characters; or lower "
            f"character_coverage. Got {size}"
        )
    return f"such that SentencePiece can learn it. Got {size}, and from SentencePiece: {message}"

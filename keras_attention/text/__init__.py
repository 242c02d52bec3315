"""Text -> ids -> text, inside the graph.

    files          lists of lines and of pairs from text files
    inputs         texts as they come -> string tensors
    normalization  Unicode normal forms of string tensors
    tables         look-up by core operations
    tokenizer      what all tokenizers share: reserved ids, padding, decoding
    vocabulary     tokenizers that count tokens in training texts
    characters, words, utf8, subwords   the four tokenizers

TensorFlow is imported only when a tokenizer is used.
"""

from keras_attention.text.characters import CharacterTokenizer
from keras_attention.text.files import DataError, read_lines, read_pairs, read_parallel
from keras_attention.text.subwords import SubwordTokenizer
from keras_attention.text.tokenizer import END, PAD, START, UNKNOWN, Tokenizer
from keras_attention.text.utf8 import ByteTokenizer
from keras_attention.text.words import WordTokenizer

__all__ = [
    "Tokenizer",
    "CharacterTokenizer",
    "WordTokenizer",
    "ByteTokenizer",
    "SubwordTokenizer",
    "PAD",
    "START",
    "END",
    "UNKNOWN",
    "read_lines",
    "read_parallel",
    "read_pairs",
    "DataError",
]

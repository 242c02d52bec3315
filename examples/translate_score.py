"""BLEU of translations, whole and by length of the source."""

from typing import NamedTuple

# Words of the source, up to and including; the last is for whatever is longer.
LENGTHS = (6, 9, 12, 15, 20, None)


class Score(NamedTuple):
    bleu: float
    signature: str


def bleu(outputs, references):
    """BLEU of detokenised texts in lower case, by sacrebleu with its tokenizer 13a."""
    from sacrebleu.metrics import BLEU

    metric = BLEU(lowercase=True, tokenize="13a")
    score = metric.corpus_score(outputs, [references]).score
    return Score(round(score, 2), str(metric.get_signature()))


def bleu_by_length(sources, outputs, references):
    """A row for each range of source lengths that occurs: words, sentences, BLEU."""
    rows, least = [], 0
    lengths = [len(source.split()) for source in sources]
    for most in LENGTHS:
        inside = [
            i for i, length in enumerate(lengths) if least <= length and length <= (most or length)
        ]
        if inside:
            chosen = ([side[i] for i in inside] for side in (outputs, references))
            row = {"from": least, "to": most or max(lengths), "sentences": len(inside)}
            rows.append({**row, "bleu": bleu(*chosen).bleu})
        least = 1 + (most or 0)
    return rows

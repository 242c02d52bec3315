"""What the searches return."""

from typing import Any, NamedTuple


class SearchResult(NamedTuple):
    """One sequence for each row of the batch.

    Attributes:
        ids: `[B, L]` token ids; after the end token, the padding token.
        lengths: `[B]` number of tokens before the end token.
        scores: `[B]` sum of the log-probabilities of the tokens, the end token included; -inf for
            a sequence that ended because no token was possible.
        attention_scores: `[B, L, S]` attention weights of each step, 0 behind the end token; None
            if the step gives none.
    """

    ids: Any
    lengths: Any
    scores: Any
    attention_scores: Any


class BeamResult(NamedTuple):
    """The N best sequences for each row of the batch, the best first.

    Attributes:
        ids: `[B, N, L]` token ids; after the end token, the padding token.
        lengths: `[B, N]` number of tokens before the end token.
        scores: `[B, N]` sum of the log-probabilities of the tokens, the end token included; -inf
            where there are fewer than N possible sequences (then the length is 0).
        ranking: `[B, N]` what they are sorted by: the score, divided by the length penalty, plus
            the coverage penalty.
        attention_scores: `[B, N, L, S]` attention weights of each step, 0 behind the end token;
            None if the step gives none.
    """

    ids: Any
    lengths: Any
    scores: Any
    ranking: Any
    attention_scores: Any

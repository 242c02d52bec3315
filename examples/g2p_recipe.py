"""Sizes and training settings, by the size of the dictionary."""

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Recipe:
    """Sizes and training settings of one run."""

    epochs: int
    batch_size: int
    embedding: int
    units: int
    dropout: float
    label_smoothing: float
    learning_rate: float

    def __str__(self):
        return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in vars(self).items())


@dataclass(frozen=True)
class TransformerRecipe(Recipe):
    """Those of a transformer: encoder and decoder of so many blocks each."""

    layers: int
    feedforward: int
    heads: int = 4
    attention_dropout: float = 0.1


# A small dictionary needs many epochs and much dropout; in a large one an epoch teaches more.
SMALL = Recipe(
    epochs=25,
    batch_size=32,
    embedding=128,
    units=192,
    dropout=0.3,
    label_smoothing=0.1,
    learning_rate=3e-3,
)
LARGE = Recipe(
    epochs=4,
    batch_size=64,
    embedding=64,
    units=256,
    dropout=0.1,
    label_smoothing=0.05,
    learning_rate=3e-3,
)
FULL = replace(LARGE, epochs=12, embedding=128, units=320, dropout=0.2)
SMOKE = Recipe(
    epochs=1,
    batch_size=32,
    embedding=16,
    units=32,
    dropout=0.1,
    label_smoothing=0.0,
    learning_rate=1e-2,
)
TRANSFORMER_SMALL = TransformerRecipe(
    epochs=120,
    batch_size=32,
    embedding=128,
    units=128,
    dropout=0.3,
    label_smoothing=0.1,
    learning_rate=1e-3,
    layers=3,
    feedforward=512,
)
TRANSFORMER_LARGE = replace(
    TRANSFORMER_SMALL, epochs=6, batch_size=64, dropout=0.1, label_smoothing=0.05
)
TRANSFORMER_FULL = replace(
    TRANSFORMER_LARGE, epochs=15, embedding=256, units=256, feedforward=1024, dropout=0.2
)
TRANSFORMER_SMOKE = replace(
    TRANSFORMER_SMALL,
    epochs=1,
    embedding=16,
    units=16,
    layers=1,
    feedforward=32,
    dropout=0.1,
    label_smoothing=0.0,
    learning_rate=1e-2,
)
SMALL_WORDS = 10_000
BUNDLED_WORDS = 60_000  # of CMUdict's training words: with LARGE they fit into ten minutes


RECIPES = {  # of small dictionaries, of large ones, with --full, with --smoke
    "recurrent": (SMALL, LARGE, FULL, SMOKE),
    "transformer": (TRANSFORMER_SMALL, TRANSFORMER_LARGE, TRANSFORMER_FULL, TRANSFORMER_SMOKE),
}


def recipe_for(training_words, full=False, model="recurrent", smoke=False):
    small, large, all_words, tiny = RECIPES[model]
    if smoke:
        return tiny
    if training_words < SMALL_WORDS:
        return small
    return all_words if full else large

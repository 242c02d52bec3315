"""Losses of sequence models, as ordinary Keras losses that are saved with the model.

Each is a number for every step of the target, averaged over the steps that are real.
"""

from keras_attention.losses.alignment import (
    CoverageLoss,
    DiagonalAlignmentLoss,
    GuidedAlignmentLoss,
)
from keras_attention.losses.cross_entropy import MaskedCrossEntropy

__all__ = ["CoverageLoss", "DiagonalAlignmentLoss", "GuidedAlignmentLoss", "MaskedCrossEntropy"]

"""Lets an output carry a mask, as Keras masks travel from layer to layer."""

import keras


class CarryMask(keras.layers.Layer):
    """Identity on `[B, T, D]` whose output carries the mask `[B, T]` it is called with.

    Keras attaches to an output the mask of a layer's first input. A mask that came as an
    argument it does not know; handed on as `mask`, it does.
    """

    def __init__(self):
        super().__init__(autocast=False, name="carry_mask")
        self.supports_masking = True

    def call(self, inputs, mask=None):
        return inputs


carry_mask = CarryMask()

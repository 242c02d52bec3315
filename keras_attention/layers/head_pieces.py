"""What a layer with heads may be given to change its scores: positions, a cap, functions."""

from keras import ops

from keras_attention import masks
from keras_attention.layers.places import mask_from_function, modify_scores
from keras_attention.normalizers import upcast
from keras_attention.scores import DotProduct, scaled_dot_score, soft_cap


class HeadPieces:
    """How the pieces of a layer with heads act, in this order.

        scores = modifier(cap(rotate(q) . rotate(k) / sqrt(d))) + bias of positions + caller's bias

    Each of them may be None; scores are `[B, ..., N, T, S]`.
    """

    @property
    def _uses_places(self):
        pieces = (self.position, self._score_modifier, self._mask_function)
        return any(piece is not None for piece in pieces)

    def _place(self, x, positions):
        return self.position.rotate(x, positions) if hasattr(self.position, "rotate") else x

    def _with_own_bias(self, pairs, places):
        if not hasattr(self.position, "bias"):
            return pairs
        bias = None if pairs.bias is None else upcast(pairs.bias)
        if hasattr(self.position, "slopes") and not places.given:
            slopes = self.position.slopes(self._num_heads)[None, :, None, None]
            slopes = ops.convert_to_tensor(slopes, "float32" if bias is None else bias.dtype)
            return pairs._replace(bias=bias, slopes=slopes)
        own = self.position.bias(places.queries, places.keys, self._num_heads)
        own = upcast(ops.convert_to_tensor(own))
        while len(own.shape) < (4 if bias is None else len(bias.shape)):
            own = ops.expand_dims(own, 1)
        return pairs._replace(bias=own if bias is None else bias + ops.cast(own, bias.dtype))

    def _pair_mask(self, batch, places, rank):
        if self._mask_function is None:
            return None
        return mask_from_function(self._mask_function, places, batch, self._num_heads, rank)

    def _product(self, queries):
        if self._score_modifier is None:
            return DotProduct(float(queries.shape[-1]) ** -0.5, self._logit_soft_cap)

    def _score_after(self, alignment, prepared):
        return lambda query, key: self._modified(scaled_dot_score(query, key), prepared.places)

    def _modified(self, scores, places):
        if self._logit_soft_cap is not None:
            scores = soft_cap(scores, self._logit_soft_cap)
        if self._score_modifier is None:
            return scores
        scores = modify_scores(self._score_modifier, self._ungroup(scores), places, self._num_heads)
        return self._group_heads(scores)

    def _normalizer_after(self, alignment, training):
        normalizer = super()._normalizer_after(alignment, training)
        if self._score_modifier is None:
            return normalizer
        # A score of -inf forbids like a mask, also where all of a row are.
        return lambda scores, mask: normalizer(
            scores, masks.combine_masks(mask, masks.bias_mask(scores))
        )

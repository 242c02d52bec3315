"""Exact attention that never holds the scores `[..., T, S]`: block by block, and its gradient.

A block is a few samples and heads by a range of queries, with all the keys that these may attend
to: a product, one softmax over whole rows, and a product again. The gradient forms the weights of
a block anew. Blocks run one after the other, so that memory is that of one. TensorFlow only.

Inside, leading axes are two: `[L, n]`, where the n of a group share their keys `[L, S, D]`.
"""

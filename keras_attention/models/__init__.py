"""Whole models put together from the layers, the decoders and the searches.

seq2seq        encoder and attentional decoder: built, trained, saved
translator     the same for use: encode, step, search, text in and text out
batches        pairs of texts -> batches to train on
"""

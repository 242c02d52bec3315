"""Whole models put together from the layers, the decoders and the searches.

seq2seq        encoder and attentional decoder: built, trained, saved
translator     the same for use: encode, step, search, text in and text out
configured     what all models share: saved by their arguments, quantised
batches        pairs of texts -> batches to train on
language_batches   a long text -> batches to train on
epochs         epochs that come out the same when a training is taken up again
"""

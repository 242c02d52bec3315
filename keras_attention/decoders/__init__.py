"""Decoders: layers that put out a sequence step by step while attending to a memory."""

"""Trained models for where none of our code is: SavedModels with text in and text out.

saved_model    `export_servable`: writes, reloads, compares
endpoints      what a servable can be asked, and how it searches
translating    the endpoints of seq2seq and transformer models
continuing     the endpoints of language models
steps          `encode` and `step`, for those who drive the loop
comparison     whether the written model gives what the model gives
card           the model card
servable       `load_servable`: the small front end, which needs TensorFlow only
bulk           files of lines through a servable
folder         folders that appear whole or not at all
"""

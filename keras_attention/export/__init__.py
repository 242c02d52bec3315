"""Trained models for where none of our code is: SavedModels with text in and text out.

saved_model    `export_servable`: writes, reloads, compares
other_backends models whose Keras runs on JAX or PyTorch
endpoints      what a servable can be asked, and how it searches
translating    the endpoints of seq2seq and transformer models
continuing     the endpoints of language models
steps          `encode` and `step`, for those who drive the loop
comparison     whether the written model gives what the model gives
card           the model card
servable       `load_servable`: the small front end, which needs TensorFlow only
bulk           files of lines through a servable
onnx_file, litert_file   `export_onnx` and `export_litert`: one endpoint as a file
other_formats  what these two take of a model, and whether they give what the model gives
converters     packages and silence of the tools that convert
whole          files and folders that appear whole or not at all
"""

"""The grammar that wrote the training sentences of the default models; `python -m samples.english` writes them again."""

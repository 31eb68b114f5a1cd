"""Write the training sentences of the default models by a grammar; `python -m samples.english` writes them again."""

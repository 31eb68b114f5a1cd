"""The grammar that wrote the sentences which the default models learnt; `python -m samples.english` writes them again."""

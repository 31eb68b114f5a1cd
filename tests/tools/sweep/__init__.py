"""Every architecture of the installed transformers, tiny and peaky: is what attnctl shows of it true?

`python -m tests.tools.sweep` runs all of it and prints a table; tests/models/huggingface/test_sweep.py runs a fast part.
"""

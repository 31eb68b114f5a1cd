"""Sentences of constructions that deceive the demo, with their marks: written by templates (templates.py) and by hand."""

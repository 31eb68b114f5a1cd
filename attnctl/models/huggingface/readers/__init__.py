"""The readers of a checkpoint: one file for each kind of input (text, picture, sound)."""

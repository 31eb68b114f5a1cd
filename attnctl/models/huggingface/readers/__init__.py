"""The readers of a checkpoint: one file for each way in which a text, a picture or a sound is read."""

"""`attnctl align`: the times of the words of a speech, or the source of each token of a target."""

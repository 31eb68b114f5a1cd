"""Whether a fact planted in filler is found, and which heads fetch it."""

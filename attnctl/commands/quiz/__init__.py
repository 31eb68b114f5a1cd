"""`attnctl quiz`: questions made from the actual numbers of a sentence."""

"""`attnctl quiz`: questions about the numbers of a sentence."""

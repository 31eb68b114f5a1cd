"""`attnctl drift`: how far a copy of a model moved, head by head."""

"""`attnctl mask`: what the masks of a model let through, and whether that is what they should."""

"""`attnctl softmax`: the softmax of a few scores, and why it is so."""

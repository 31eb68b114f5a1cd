"""`attnctl softmax`: what the softmax makes of a few scores, and why."""

"""Training a small attention model to predict words, and measuring what its heads then look at."""

"""`attnctl train`: train a small attention model to predict words, and watch its heads learn where to look."""

"""What each part of a model adds to the logit of the next word."""

"""`attnctl compare`: two models on one text, two traces, or two texts, side by side."""

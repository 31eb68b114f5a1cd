"""`attnctl ablate`: what each head, edge or part of a text does for a prediction."""

"""`attnctl heads`: what each head does over a text, and what kind it is."""

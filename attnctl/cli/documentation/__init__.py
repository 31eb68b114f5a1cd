"""The documentation: pages written by hand, pages made from the program itself, and the site of them all."""

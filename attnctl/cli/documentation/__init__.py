"""The documentation: pages written by hand, pages made from the program itself, man pages, and the site of them all."""

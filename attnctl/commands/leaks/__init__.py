"""`attnctl leaks`: whether a model keeps the documents of a packed batch apart."""

"""`attnctl evaluate`: which words the heads of a model find, beside rules that need no learning."""

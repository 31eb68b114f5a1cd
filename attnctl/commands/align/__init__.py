"""`attnctl align`: when each word of a speech was said, or what each token of a target was made from."""

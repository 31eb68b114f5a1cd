"""Find where an answer came from: what each part of a prompt does for it."""

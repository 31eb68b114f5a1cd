"""The attention of any torch module, watched while it runs."""

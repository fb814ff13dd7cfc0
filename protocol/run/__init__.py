"""A run: its recipe, its manifest, its files, and its policies."""

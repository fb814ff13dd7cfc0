"""Founding of a run: from a recipe and a model to a signed manifest and data directories."""

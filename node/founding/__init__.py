"""Founding a run: from a recipe and a model to a signed manifest and directories of its nodes."""

"""Checks of a machine before a node joins a run, each with a remedy."""

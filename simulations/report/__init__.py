"""Plots and one HTML page of a run."""

"""Sampling of tokens with assigned noise."""

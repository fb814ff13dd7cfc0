"""Policies on this machine: fetched over the forest, kept, published, forgotten."""

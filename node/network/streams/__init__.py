"""Shared parts of all stream protocols: frames, deadlines, limits and names."""

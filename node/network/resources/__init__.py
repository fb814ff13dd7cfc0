"""Limits of what peers may use: streams, bytes, calls, upload bandwidth."""

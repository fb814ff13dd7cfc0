"""Resource limits per peer: streams, bytes, directory calls, upload bandwidth."""

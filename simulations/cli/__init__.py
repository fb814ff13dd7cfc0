"""``prime-node simulate``."""

"""``prime-node``: what a person types."""

"""A node's copy of the shared state, changed only by signed messages."""

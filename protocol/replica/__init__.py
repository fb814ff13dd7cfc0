"""A node's copy of the shared state, changed by signed messages only."""

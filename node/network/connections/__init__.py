"""Connections to peers: whom to dial, whom to keep, whom to refuse."""

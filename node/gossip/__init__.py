"""Gossip live: drives the pure router of ``protocol.gossip`` over streams to connected peers."""

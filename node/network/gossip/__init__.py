"""Gossip live: drives the pure router of ``protocol.gossipsub`` over streams to connected peers."""

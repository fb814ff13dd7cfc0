"""GossipSub driver: runs the pure router of ``protocol.gossipsub`` over streams to peers."""

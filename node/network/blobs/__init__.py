"""The blob protocol: ranges of content-addressed bytes, from peer to peer."""

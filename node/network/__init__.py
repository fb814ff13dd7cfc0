"""Streams, connections and everything that limits what peers may use."""

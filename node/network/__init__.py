"""Streams, connections, and the limits on the resources that peers can use."""

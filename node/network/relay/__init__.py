"""Connections through a relay, for nodes that nobody can dial.

libp2p's circuit relay v2: a node keeps a reservation at a relay (``reservations``), whoever wants
to reach it asks that relay for a circuit, and the relay copies bytes between the two (``relay``).
The circuit is a connection of libp2p like any other, encrypted from end to end; ``p2pd`` dials
and accepts it, and tries to replace it by a direct one (hole punching). Its own relay service is
off: its limits cannot be set (docs/adr/0032).
"""

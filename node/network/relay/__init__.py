"""Relayed connections for nodes behind NAT: libp2p's circuit relay v2.

A node keeps a reservation at a relay (``reservations``). A caller requests a circuit from that
relay, which copies bytes between the two nodes (``relay``). The circuit is an ordinary libp2p
connection, encrypted end to end. ``p2pd`` dials and accepts it, and tries to replace it by a direct
connection (hole punching). The relay service of ``p2pd`` is off because its limits are not
configurable (docs/adr/0032).
"""

"""The control API: how people and monitors ask a running daemon, on 127.0.0.1 only.

``server`` runs in the daemon's loop, ``client`` is what the commands ask with, ``render`` draws the
answers. The API only reads: whoever can open a local port may look, and nobody can command.

===========  =============================================================================
path         answer
===========  =============================================================================
/healthz     200 while the loop turns
/readyz      200 when the state is ``ready``, else 503; JSON with ``state`` and ``reason``
/metrics     Prometheus text
/status      ``NodeStatus`` as JSON
/peers       ``peers_connected``, ``members`` and ``gossip_peers`` of ``NodeStatus``
/why         why the node is not ready, and why own rollouts were not certified
===========  =============================================================================
"""

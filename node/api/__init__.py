"""Read-only HTTP API of a running daemon, on 127.0.0.1 only.

``observer`` holds the components of the node and its state. ``reader`` and the readers in ``v1``
compute each fact once, for all views: status, metrics, why and pages. ``server`` runs in the
daemon's event loop; ``node.cli.api_client`` is the client of the commands, ``node.cli.render``
draws the responses. Any process that can open a local port may read the API.

===========  =============================================================================
path         response
===========  =============================================================================
/healthz     200 while the event loop runs
/readyz      200 when the state is ``ready``, else 503; JSON with ``state`` and ``reason``
/metrics     Prometheus text
/status      ``NodeStatus`` as JSON
/peers       ``peers_connected``, ``members`` and ``gossip_peers`` of ``NodeStatus``
/why         why the node is not ready, and why own rollouts were not certified
===========  =============================================================================
"""

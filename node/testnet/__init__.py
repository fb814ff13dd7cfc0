"""``prime-node testnet``: a whole swarm of separate processes on this machine, with a live view.

Every node is the ordinary daemon with its own identity, data directory and ``p2pd``. The testnet
only starts the nodes, polls their control APIs, and stops them. Reading order: ``plan`` (members),
``genesis`` (keys, first policy, manifest), ``launcher`` (fork server), ``record`` (observations),
``swarm`` (the run itself), then ``view`` and ``report``.
"""

"""``prime-node testnet``: a whole swarm of separate processes on this machine, and a view of it.

Every node is the daemon that strangers run, with its own identity, data directory and ``p2pd``; the
testnet only starts them, looks at their control APIs, and stops them. Read in this order: ``plan``
(who takes part), ``genesis`` (keys, first policy, manifest), ``launcher`` (processes that start in
milliseconds), ``record`` (what was seen), ``swarm`` (the run itself), then ``view`` and ``report``.
"""

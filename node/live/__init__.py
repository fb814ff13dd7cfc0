"""The live world: the ports of ``roles.ports`` on real processes, sockets and clocks.

Read in this order: ``sockets`` and ``p2pd`` (one child process), ``control`` (its requests and
streams), ``hivemind_p2p`` (the ``Transport``), ``records`` and ``hivemind_dht`` (the
``Directory``). hivemind is imported here only, and without torch (``lazy_hivemind``).
"""

from node.live import lazy_hivemind

lazy_hivemind.install()

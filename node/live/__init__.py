"""Live ports: implementations of ``roles.ports`` on real processes and sockets.

Reading order: ``p2pd`` (child process), ``control`` (its requests and streams), ``hivemind_p2p``
(the ``Transport``), ``records`` and ``hivemind_dht`` (the ``Directory``). Only this package imports
hivemind, and without torch (``lazy_hivemind``).
"""

from node.live import lazy_hivemind

lazy_hivemind.install()

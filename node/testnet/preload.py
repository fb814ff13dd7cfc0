"""Imports of the fork server, so that forked nodes start in milliseconds.

The engines' fork server has its own imports (``roles.engines.subprocess``). No import may start a
thread: a fork copies the locks of a thread but not the thread.
"""

import gc
from importlib import import_module

from node.process.runner import MODULES

for module in ("node.testnet.child", "uvloop", *MODULES):
    import_module(module)

# Existing objects are never garbage; a collection in a child would only unshare their pages.
gc.collect()
gc.freeze()

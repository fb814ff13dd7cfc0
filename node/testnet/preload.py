"""What every node needs in memory, imported once: children forked afterwards start in milliseconds.

What engines need is imported by the server that they are forked from
(``roles.engines.subprocess``). None of the imports may start a thread, or a fork would copy its
locks but not it.
"""

import gc
from importlib import import_module

from node.process.runner import MODULES

for module in ("node.testnet.child", "uvloop", *MODULES):
    import_module(module)

# What exists now is never garbage; a collection in a child would only unshare its pages.
gc.collect()
gc.freeze()

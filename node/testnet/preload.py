"""What every node needs in memory, imported once: children forked afterwards start in milliseconds.

Importing torch, hivemind and transformers takes six seconds on two cores, and fifty for eight nodes
that do it each. None of the imports may start a thread, or a fork would copy its locks but not it.
"""

import gc
from importlib import import_module

MODULES = (
    "node.testnet.child",
    "node.api.server",
    "node.daemon",
    "roles.engines.factory",
    "node.local.hardware",
    "node.live.hivemind_dht",
    "node.live.hivemind_p2p",
    "node.storage.blobs",
    "node.storage.state",
    "roles.engines.builtin.generation",
    "roles.engines.training.engine",
    "roles.engines.cold_start",
    "roles.engines.builtin.verification",
    "uvloop",
)

for module in MODULES:
    import_module(module)

# What exists now is never garbage; a collection in a child would only unshare its pages.
gc.collect()
gc.freeze()

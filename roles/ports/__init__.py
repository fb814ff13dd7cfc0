"""Everything that a node touches outside itself, as interfaces.

The daemon and the role flows know only these; ``node.live`` and ``node.storage`` implement them on
hivemind, SQLite and files, ``simulations.ports`` in virtual time.
"""

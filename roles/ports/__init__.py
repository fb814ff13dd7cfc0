"""Everything that a node touches outside itself, as interfaces: all that daemon and roles know.

``node.live`` and ``node.storage`` implement them, ``simulations.ports`` does in virtual time.
"""

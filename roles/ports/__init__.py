"""Interfaces to everything outside a node: storage, transport, clock, engines, swarm.

``node.live`` and ``node.storage`` implement them; ``simulations.ports`` does so in virtual time.
"""

"""What nodes do for a run: inference, validation, training.

Each role is a plain coroutine over a ``RoleContext`` (``flow``) and the ports that it computes and
speaks through (``ports``). Engines, the only code that knows torch, live beside the role that uses
them. A relay has no flow: carrying messages, weights and connections is what every node does.
"""

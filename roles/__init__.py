"""What nodes do for a run: inference, validation, training.

Each role is a plain coroutine over a ``RoleContext`` (``flow``) and the ports that it computes and
speaks through (``ports``). ``engines`` is the only code that knows torch, ``environments`` are the
tasks. A relay has no flow: carrying messages, weights and connections is what every node does.
"""

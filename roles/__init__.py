"""What nodes do for a run: inference, validation, training, each a coroutine over ports.

``engines`` is the only code that knows torch, ``environments`` are the tasks. A relay has no flow:
carrying messages, weights and connections is what every node does.
"""

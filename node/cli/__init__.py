"""The ``prime-node`` command line."""

"""The daemon and its commands.

``daemon`` wires one node from ports without any I/O. ``process.runner`` gives it hivemind, files
and SQLite (``live``, ``storage``) and turns its configuration into an exit code. ``cli`` holds the
commands, ``api`` the control API of a running node, ``testnet`` a whole swarm on one machine.
"""

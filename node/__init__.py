"""The daemon and its commands.

``daemon`` wires one node from ports and knows nothing live; ``run`` gives it hivemind, files and
SQLite (``live``, ``storage``) and turns configuration into an exit code. ``cli`` is what a person
types, ``api`` what a running node answers, ``testnet`` a whole swarm on one machine.
"""

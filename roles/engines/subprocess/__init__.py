"""Engines in separate processes: the daemon holds no tensors and survives an engine crash.

A *fork server* imports torch once and forks engine processes (``forkserver``). Each runs one engine
of ``roles.engines.factory`` and serves it on a socket (``server``). In the daemon, ``process``
starts and kills them, ``connection`` calls one, ``group`` calls several that compute together as
ranks, ``supervisor`` replaces dead ones, and ``client`` implements the ports that roles use. Both
sides share ``wire`` and ``rpc_methods``.
"""

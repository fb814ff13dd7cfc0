"""Engines in processes of their own: the daemon holds no tensors, and outlives what computes.

An engine process is forked by a *fork server* that has imported torch once (``forkserver``), runs
one engine of ``roles.engines.factory`` and serves it on a socket (``server``). On the daemon's side
``process`` starts and ends such processes, ``conversation`` talks to one, ``supervisor`` replaces
it when it dies, and ``engines`` makes of that the ports that roles use. ``wire`` and ``methods``
are what both sides say.
"""

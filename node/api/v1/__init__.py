"""JSON API of the dashboard under ``/api/v1``, for a running node or a recorded one.

``answers`` holds the response types, ``queries`` the parameters, ``routes`` the paths. A ``source``
provides the data: a node (``node_source``) or a file (``recording``).

====================  ============================================================================
path                  response
====================  ============================================================================
/meta                 live or recorded, boot id, selectable nodes
/overview             state, reward by version, counts, rates
/history              counters since the start, at even intervals
/rollouts             a page; ``state worker version reason after limit``
/rollouts/COMMIT      a rollout with its text, its stages and every verdict
/peers                a page; ``role reputation text sort offset limit``
/council              members of the council, its newest pages, and votes missing
/weights              versions, downloads, and the forest of ``version``
/training             statistics of training steps by version
/node                 this machine: disk, memory, GPUs, queues, event loop, log
/run                  rules of the run
/events               events, newest first; ``kind limit``
/stream               server-sent events: ``look`` each second, and ``happened``
/schema               JSON schema of every response above
====================  ============================================================================
"""

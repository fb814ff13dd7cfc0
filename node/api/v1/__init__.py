"""What the web view reads: JSON under ``/api/v1``, of a living node or of one that was recorded.

``answers`` are the shapes, ``queries`` what may be asked, ``routes`` the paths, ``source`` what
they answer from: a node (``node_source``), or a file (``recording``).

====================  ============================================================================
path                  answer
====================  ============================================================================
/meta                 whether it is live, who answers, and which nodes can be asked
/overview             state, reward by version, counts, rates
/history              what was counted since the start, at even intervals
/rollouts             a page; ``state worker version reason after limit``
/rollouts/COMMIT      one of them with its text, its way and every verdict
/peers                a page; ``role standing text sort offset limit``
/weights              versions, what is on its way, and the forest of ``version``
/node                 this machine: disk, memory, GPUs, queues, loop, log
/run                  the run in words
/events               what happened, the newest first; ``kind limit``
/stream               server-sent events: ``look`` each second, and ``happened``
/schema               the JSON schema of every answer above
====================  ============================================================================
"""

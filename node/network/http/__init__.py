"""Weights over HTTP: a second way to what the blob protocol carries, and SHARDCAST's published one.

``server`` runs in the daemon's loop, ``client`` is the other end. Both speak plain HTTP/1.1 without
any authentication: whoever fetches checks digests, and whoever can open the port may read weights.

============================  =====================================================================
path                          answer
============================  =====================================================================
/blobs/<64 hex digits>        a shard or an index, of weights or of the run's own files
/distribution.txt             one line per version here: ``v<N>: <BLAKE3 of its file>|<shards>``
/v<N>/shard_<5 digits>.bin    50,000,000 bytes of that file, counted from 1; the last is shorter
/data1.bin                    a megabyte of zeros, by which clients measure a server
============================  =====================================================================

The last three are the layout of shardcast 0.3.2, whose clients can download from any node. GET and
HEAD; single ranges. ``Prefer: wait`` (RFC 7240) asks for a blob that is still arriving, whose
chunks then come as they are verified.

``catalogue`` knows what is behind a path, ``representation`` what to answer of it, ``application``
sends that within limits, ``connection`` and ``doorkeeper`` keep slow and greedy clients from
holding the server up.
"""

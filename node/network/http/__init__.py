"""Weights over HTTP: an alternative to the blob protocol, and SHARDCAST's published layout.

``server`` runs in the daemon's loop; ``client`` is the other end. Both speak plain HTTP/1.1 without
authentication: clients verify digests, and any host that can connect may read weights.

============================ =====================================================================
path answer ============================
===================================================================== /blobs/<64 hex digits> a shard
or an index, of weights or of the run's own files /distribution.txt one line per stored version:
``v<N>: <BLAKE3 of its file>|<shards>`` /v<N>/shard_<5 digits>.bin 50,000,000 bytes of that file,
counted from 1; the last is shorter /data1.bin 1,000,000 zero bytes, for clients that measure a
server ============================
=====================================================================

The last three are the layout of shardcast 0.3.2, whose clients can download from any node. Methods:
GET and HEAD with single ranges. ``Prefer: wait`` (RFC 7240) requests a blob that is still being
downloaded; the server sends each chunk once it is verified.

``catalog`` maps a path to a resource, ``range_response`` computes the response, and ``application``
sends it within limits. ``server_connection`` and ``rate_limit`` limit clients.
"""

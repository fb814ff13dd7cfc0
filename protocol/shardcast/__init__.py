"""SHARDCAST: how one large file reaches every node at about the speed of one link.

Five pure pieces. ``index`` cuts the file into shards (the unit of storage) and chunks (the unit
of trust: each has its own digest, so bad bytes name their sender within one chunk). ``forest`` says
who feeds whom: shards are striped over several trees with different inner nodes, as in SplitStream
(Castro et al., SOSP 2003), but computed by everyone from the roster and the version, without a
message. ``transfer`` decides which chunks to ask of whom, and replaces a parent that is late, dead
or dishonest; ``events`` is its vocabulary. ``source_history`` is what a node remembers from version
to version of those that it had to replace, and ``timer`` tells both of them what is late. Bytes
never pass through these pieces: ``node.weights.download`` moves them.
"""

"""SHARDCAST: distribution of one large file to every node at about the speed of one link.

Five pure parts. ``index`` divides the file into shards (the unit of storage) and chunks (the unit
of verification). Each chunk has its own digest, so bad bytes identify their sender within one
chunk. ``forest`` assigns parents: shards are striped over several trees with different inner nodes,
as in SplitStream (Castro et al., SOSP 2003). Every node computes the trees from the roster and the
version, without a message. ``transfer`` selects the chunks to request from each peer, and replaces
a parent that is late, dead or dishonest; ``events`` holds its inputs and outputs.
``source_history`` remembers replaced sources across versions. No bytes pass through these parts:
``node.weights.download`` moves them.
"""

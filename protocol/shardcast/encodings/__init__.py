"""Transfer encodings of weights: a full file, or the difference from another version.

A policy is a safetensors file. It is encoded as a stream of blocks, each of consecutive elements of
one tensor width. A block is unchanged, a *patch* against the same elements of a base version, or in
full as *byte planes*. Blocks are independent, so a node decodes while the bytes arrive and holds
one block in memory. The digest of the decoded tensors identifies the result, independent of the
encoding.

``tensor_file`` locates the tensors of a file. ``steps`` and ``planes`` are the two codes. ``block``
combines them, ``framing`` separates blocks as they arrive, and ``stream`` writes and reads a whole
encoding. All input is untrusted: counts, positions and sizes are checked before use.
"""

ENCODING_PAYS = 0.9
"""Largest ratio of encoding to file that is worth publishing; a guess."""

"""How the weights of a version travel: as they are, or as their difference from another version.

A policy is a safetensors file. It is encoded as a stream of blocks, each of consecutive elements
of one tensor: unchanged, a *patch* of the same elements of a base version, or in full as *byte
planes*. Every block stands for itself, so a node decodes while the bytes arrive and holds one block
in memory; what comes out is named by the digest of its tensors, whichever way it came.

``tensor_file`` says where the tensors of a file are; ``steps`` and ``planes`` are the two codes,
and ``positions`` finds ones; ``block`` puts them together; ``framing`` tells blocks apart as they
arrive; ``stream`` writes and reads the whole. Everything that is decoded here was made by someone
else: counts, positions and sizes are bounded before they are used.
"""

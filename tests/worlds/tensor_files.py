"""Safetensors files written from the format's specification, and policies in them."""

import json
from collections.abc import Mapping

import numpy as np

from protocol.core.crypto import digest, policy_digest
from protocol.core.types import Digest

DTYPES = {1: "U8", 2: "BF16", 4: "F32", 8: "F64"}
"""Type names by bytes per element."""


def file_of(tensors: Mapping[str, np.ndarray]) -> bytes:
    """Return a safetensors file, written from the format's specification."""
    table, end = {}, 0
    for name, words in tensors.items():
        begin, end = end, end + words.nbytes
        table[name] = {
            "dtype": DTYPES[words.itemsize],
            "shape": list(words.shape),
            "data_offsets": [begin, end],
        }
    text = json.dumps(table).encode()
    text += b" " * (-len(text) % 8)
    data = b"".join(words.tobytes() for words in tensors.values())
    return len(text).to_bytes(8, "little") + text + data


def policy_of(tensors: Mapping[str, np.ndarray]) -> Digest:
    return policy_digest(
        (name, DTYPES[words.itemsize], words.shape, digest(words.tobytes()))
        for name, words in tensors.items()
    )

"""Canonical msgpack encoding, the only conversion between bytes and values.

Canonical means: map keys are strings in sorted order, integers and lengths have their shortest
form, no extension types, no NaN. ``decode`` encodes again and compares. Every value therefore has
one accepted encoding, and a digest of the bytes is a digest of the value.
"""

import math
from collections.abc import Iterable
from typing import Any

import msgpack

from protocol.core.faults import Fault, FaultCode

DEPTH_MAX = 16
"""Maximum nesting accepted from outside; our deepest message has 5 levels."""


def encode(value: Any) -> bytes:
    """Return the canonical encoding of ``value``.

    Raises ``TypeError``, ``ValueError`` or ``OverflowError`` if it has none: a key that is not a
    string, a NaN, an integer of more than 64 bits.
    """
    return bytes(msgpack.packb(_canonical(value, DEPTH_MAX), use_bin_type=True))


def decode(data: bytes, *, bytes_max: int) -> Any | Fault:
    """Return the value that ``data`` encodes, with sequences as tuples, or a ``Fault``."""
    if len(data) > bytes_max:
        return Fault(FaultCode.OVERSIZE, f"{len(data)} bytes, limit {bytes_max}")
    try:
        require_whole(data)
        value = msgpack.unpackb(data, raw=False, use_list=False, strict_map_key=True)
        # msgpack returns plain types: check them instead of rebuilding them as ``encode`` does.
        if not _is_canonical(value, DEPTH_MAX) or msgpack.packb(value, use_bin_type=True) != data:
            return Fault(FaultCode.NOT_CANONICAL)
    except (ValueError, TypeError, RecursionError, OverflowError) as error:
        return Fault(FaultCode.UNDECODABLE, type(error).__name__)
    return value


def require_whole(data: bytes) -> None:
    """Raise ``ValueError`` if ``data`` is shorter than it announces.

    ``unpackb`` allocates the announced number of items before it reads them: 4 kB of nested
    sequence headers took 25 MB, and 64 kB took 78 MB.
    """
    unpacker = msgpack.Unpacker(max_buffer_size=len(data))
    unpacker.feed(data)
    try:
        unpacker.skip()  # allocates nothing
    except msgpack.OutOfData as error:
        raise ValueError("ends early") from error


_PLAIN = frozenset({type(None), bool, int, str, bytes})


def _is_canonical(value: Any, depth: int) -> bool:
    """Return whether an unpacked value has sorted string keys and only encodable values."""
    kind = type(value)
    if depth == 0:
        raise ValueError(f"nested deeper than {DEPTH_MAX}")
    if kind is dict:
        if not _in_order(value):
            return False
        value = value.values()
    elif kind is not tuple:
        return _is_plain(value)
    if depth == 1 and value:
        raise ValueError(f"nested deeper than {DEPTH_MAX}")
    return all(type(item) in _PLAIN or _is_canonical(item, depth - 1) for item in value)


def _in_order(keys: Iterable[Any]) -> bool:
    last = ""
    for key in keys:
        if type(key) is not str:
            raise TypeError("map keys must be strings")
        if key < last:
            return False
        last = key
    return True


def _is_plain(value: Any) -> bool:
    kind = type(value)
    if kind is float and not math.isfinite(value):
        raise ValueError("not a finite number")
    if kind is float or kind in _PLAIN:
        return True
    if kind is msgpack.ExtType:
        return False
    raise TypeError(f"no canonical form for {kind.__name__}")


def _canonical(value: Any, depth: int) -> Any:
    if depth == 0:
        raise ValueError(f"nested deeper than {DEPTH_MAX}")
    if type(value) in _PLAIN:  # nearly all are; the checks below take four times as long
        return value
    if isinstance(value, dict):
        if not all(type(key) is str for key in value):
            raise TypeError("map keys must be strings")
        return {key: _canonical(value[key], depth - 1) for key in sorted(value)}
    if isinstance(value, list | tuple):
        return [_canonical(item, depth - 1) for item in value]
    if isinstance(value, str):
        return str(value)
    if _is_plain(value):
        return value
    raise TypeError(f"no canonical form for {type(value).__name__}")

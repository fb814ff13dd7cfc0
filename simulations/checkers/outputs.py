"""Outputs of ECVRF-EDWARDS25519-SHA512-TAI proofs (RFC 9381, section 5.2), without ``protocol``.

The proof itself is not checked here: a page with a bad proof gets no honest vote.
"""

from functools import lru_cache
from hashlib import sha512

_FIELD = 2**255 - 19
_D = -121665 * pow(121666, -1, _FIELD) % _FIELD
_ROOT_OF_MINUS_ONE = pow(2, (_FIELD - 1) // 4, _FIELD)
_COFACTOR_DOUBLINGS = 3
_SUITE, _OUTPUT, _END = b"\x03", b"\x03", b"\x00"

_Point = tuple[int, int]


@lru_cache(maxsize=4096)
def output_of(proof: bytes) -> bytes:
    """Return the 64-byte output of a proof; empty if its point is not on the curve."""
    point = _decoded(proof[:32])
    if point is None:
        return b""
    for _ in range(_COFACTOR_DOUBLINGS):
        point = _doubled(point)
    x, y = point
    encoded = (y | (x & 1) << 255).to_bytes(32, "little")
    return sha512(_SUITE + _OUTPUT + encoded + _END).digest()


def _decoded(data: bytes) -> _Point | None:
    """Decode a point (RFC 8032, section 5.1.3)."""
    bits = int.from_bytes(data, "little")
    y, odd = bits & (1 << 255) - 1, bits >> 255
    square = (y * y - 1) * pow(_D * y * y + 1, -1, _FIELD) % _FIELD
    x = pow(square, (_FIELD + 3) // 8, _FIELD)
    if x * x % _FIELD != square:
        x = x * _ROOT_OF_MINUS_ONE % _FIELD
    if x * x % _FIELD != square:
        return None
    return (_FIELD - x if x & 1 != odd else x), y


def _doubled(point: _Point) -> _Point:
    x, y = point
    product = _D * x * x * y * y % _FIELD
    doubled_x = 2 * x * y * pow(1 + product, -1, _FIELD) % _FIELD
    doubled_y = (y * y + x * x) * pow(1 - product, -1, _FIELD) % _FIELD
    return doubled_x, doubled_y

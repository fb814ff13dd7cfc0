"""ECVRF-EDWARDS25519-SHA512-TAI in plain integers, written from RFC 9381 alone."""

from hashlib import sha512

P = 2**255 - 19
ORDER = 2**252 + 27742317777372353535851937790883648493
D = -121665 * pow(121666, -1, P) % P
ROOT = pow(2, (P - 1) // 4, P)
SUITE = b"\x03"

Point = tuple[int, int]


def add(one: Point, other: Point) -> Point:
    (x1, y1), (x2, y2) = one, other
    product = D * x1 * x2 * y1 * y2 % P
    x = (x1 * y2 + x2 * y1) * pow(1 + product, -1, P)
    y = (y1 * y2 + x1 * x2) * pow(1 - product, -1, P)
    return x % P, y % P


def times(factor: int, point: Point) -> Point:
    total = (0, 1)
    while factor:
        if factor & 1:
            total = add(total, point)
        point, factor = add(point, point), factor >> 1
    return total


def negative(point: Point) -> Point:
    return -point[0] % P, point[1]


def encoded(point: Point) -> bytes:
    return (point[1] | (point[0] & 1) << 255).to_bytes(32, "little")


def decoded(data: bytes) -> Point | None:
    number = int.from_bytes(data, "little")
    sign, y = number >> 255, number & (1 << 255) - 1
    square = (y * y - 1) * pow(D * y * y + 1, -1, P) % P
    x = pow(square, (P + 3) // 8, P)
    if (x * x - square) % P:
        x = x * ROOT % P
    if y >= P or (x * x - square) % P or (x == 0 and sign):
        return None
    return (x if x & 1 == sign else P - x), y


_BASE = decoded((4 * pow(5, -1, P) % P).to_bytes(32, "little"))
assert _BASE is not None
BASE: Point = _BASE


def to_curve(salt: bytes, alpha: bytes) -> Point:
    for counter in range(256):
        text = SUITE + b"\x01" + salt + alpha + bytes([counter]) + b"\x00"
        point = decoded(sha512(text).digest()[:32])
        if point is not None:
            return times(8, point)
    raise AssertionError


def output(public_key: bytes, alpha: bytes, proof: bytes) -> bytes | None:
    """Return the output of a proof, or None if it is not good."""
    key, gamma = decoded(public_key), decoded(proof[:32])
    challenge, scalar = proof[32:48], int.from_bytes(proof[48:], "little")
    if key is None or gamma is None or scalar >= ORDER:
        return None
    point, factor = to_curve(public_key, alpha), int.from_bytes(challenge, "little")
    u = add(times(scalar, BASE), negative(times(factor, key)))
    v = add(times(scalar, point), negative(times(factor, gamma)))
    points = public_key + b"".join(map(encoded, (point, gamma, u, v)))
    if sha512(SUITE + b"\x02" + points + b"\x00").digest()[:16] != challenge:
        return None
    return sha512(SUITE + b"\x03" + encoded(times(8, gamma)) + b"\x00").digest()

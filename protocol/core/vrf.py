"""Verifiable random function ECVRF-EDWARDS25519-SHA512-TAI (RFC 9381) on libsodium.

A key has exactly one output for an input, so its owner can neither choose nor foresee another one,
and the proof convinces everyone. The key is the node's Ed25519 key. Points outside the prime-order
group are refused, which RFC 9381 leaves open: honest proofs contain none.
"""

from hashlib import sha512

from nacl.bindings import (
    crypto_core_ed25519_add,
    crypto_core_ed25519_is_valid_point,
    crypto_core_ed25519_scalar_add,
    crypto_core_ed25519_scalar_mul,
    crypto_core_ed25519_scalar_reduce,
    crypto_core_ed25519_sub,
    crypto_scalarmult_ed25519_base_noclamp,
    crypto_scalarmult_ed25519_noclamp,
)
from nacl.exceptions import RuntimeError as SodiumError

PROOF_BYTES = 80
"""A point of 32 bytes, a challenge of 16 and a scalar of 32."""

OUTPUT_BYTES = 64

_SUITE, _ENCODE, _CHALLENGE, _OUTPUT, _END = b"\x03", b"\x01", b"\x02", b"\x03", b"\x00"
_COFACTOR = (8).to_bytes(32, "little")
_GROUP_ORDER = 2**252 + 27742317777372353535851937790883648493
_TRIES_MAX = 256


def prove(seed: bytes, public_key: bytes, alpha: bytes) -> bytes:
    """Return the 80-byte proof of a key's output for ``alpha`` (section 5.1)."""
    hashed = bytearray(sha512(seed).digest())
    hashed[0] &= 248
    hashed[31] = hashed[31] & 127 | 64
    secret, prefix = bytes(hashed[:32]), bytes(hashed[32:])
    point = _to_curve(public_key, alpha)
    gamma = crypto_scalarmult_ed25519_noclamp(secret, point)
    nonce = crypto_core_ed25519_scalar_reduce(sha512(prefix + point).digest())
    challenge = _challenge(
        public_key,
        point,
        gamma,
        crypto_scalarmult_ed25519_base_noclamp(nonce),
        crypto_scalarmult_ed25519_noclamp(nonce, point),
    )
    reduced = crypto_core_ed25519_scalar_reduce(secret + bytes(32))
    product = crypto_core_ed25519_scalar_mul(challenge + bytes(16), reduced)
    return gamma + challenge + crypto_core_ed25519_scalar_add(nonce, product)


def output(public_key: bytes, alpha: bytes, proof: bytes) -> bytes | None:
    """Check a proof and return the 64-byte output, or None if it is invalid (section 5.3)."""
    if len(proof) != PROOF_BYTES or len(public_key) != 32:
        return None
    gamma, challenge, scalar = proof[:32], proof[32:48], proof[48:]
    if int.from_bytes(scalar, "little") >= _GROUP_ORDER:
        return None
    if not all(map(crypto_core_ed25519_is_valid_point, (public_key, gamma))):
        return None
    padded = challenge + bytes(16)
    try:
        point = _to_curve(public_key, alpha)
        announced = _challenge(
            public_key,
            point,
            gamma,
            crypto_core_ed25519_sub(
                crypto_scalarmult_ed25519_base_noclamp(scalar),
                crypto_scalarmult_ed25519_noclamp(padded, public_key),
            ),
            crypto_core_ed25519_sub(
                crypto_scalarmult_ed25519_noclamp(scalar, point),
                crypto_scalarmult_ed25519_noclamp(padded, gamma),
            ),
        )
    except SodiumError:
        return None  # a zero scalar, which no honest proof has
    return _hash(gamma) if announced == challenge else None


def _hash(gamma: bytes) -> bytes:
    scaled = crypto_scalarmult_ed25519_noclamp(_COFACTOR, gamma)
    return sha512(_SUITE + _OUTPUT + scaled + _END).digest()


def _to_curve(salt: bytes, alpha: bytes) -> bytes:
    """Return the first hash that is a point, times the cofactor (section 5.4.1.1)."""
    for counter in range(_TRIES_MAX):
        text = _SUITE + _ENCODE + salt + alpha + bytes([counter]) + _END
        point = sha512(text).digest()[:32]
        try:
            for _ in range(3):  # libsodium multiplies points of the prime-order group only
                point = crypto_core_ed25519_add(point, point)
        except SodiumError:
            continue
        if crypto_core_ed25519_is_valid_point(point):
            return point
    raise AssertionError("no hash is a point: one input in 2^256")


def _challenge(*points: bytes) -> bytes:
    return sha512(_SUITE + _CHALLENGE + b"".join(points) + _END).digest()[:16]

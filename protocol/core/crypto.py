"""Ed25519 identities in libp2p encodings, domain-separated signatures, BLAKE3 and argon2id.

One key per node is its libp2p host key, its directory owner and its message signer. A peer id of an
Ed25519 key contains the public key (identity multihash), so the peer id alone verifies a signature.
Layouts: libp2p peer-id specification, key protobuf and identity multihash.

A policy is identified by the digest of its decoded tensors, not of a file. An engine that loads
half of the weights, or keeps an old output layer, computes another digest and stops.
"""

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Protocol

import base58
from blake3 import blake3
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.kdf.argon2 import Argon2id
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from protocol.core import vrf
from protocol.core.codec import encode
from protocol.core.types import MEMBERS_MAX, Digest, PeerId

PEER_ID_PREFIX = bytes.fromhex("002408011220")
"""Identity multihash of a 36-byte key protobuf: type Ed25519, 32 bytes of key."""

PRIVATE_KEY_PREFIX = bytes.fromhex("08011240")
"""Key protobuf: type Ed25519, 64 bytes of seed and public key."""

SIGNATURE_BYTES = 64

_PEER_ID_CHARACTERS = 52
"""Base58 length of 38 bytes with this prefix, for every key."""

_DOMAIN = b"prime-node/2"

Verifier = Callable[[PeerId, bytes, bytes], bool]
"""``(signer, message, signature) -> valid``; the simulator may pass a cheaper one."""

Output = Callable[[PeerId, bytes, bytes], bytes | None]
"""``(signer, alpha, proof) -> output`` of a verifiable random function; None: invalid."""


def digest(data: bytes | bytearray) -> Digest:
    """Return the 32-byte BLAKE3 digest of ``data``."""
    return Digest(blake3(data).digest())


def memory_hard(data: bytes, salt: bytes, *, kib: int, passes: int) -> bytes:
    """Return 32 bytes of argon2id (RFC 9106) with one lane: 0.4 to 1.4 ms for each MiB and pass."""
    return Argon2id(salt=salt, length=32, iterations=passes, lanes=1, memory_cost=kib).derive(data)


def signing_bytes(kind: str, run_id: bytes, payload: bytes) -> bytes:
    """Return the signed bytes: domain, kind, run and payload, so none is valid elsewhere."""
    kind_bytes = kind.encode()
    return b"".join((_DOMAIN, bytes([len(kind_bytes)]), kind_bytes, run_id, payload))


def peer_id_from_public_key(public_key: bytes) -> PeerId:
    """Return the ``12D3KooW…`` form of a 32-byte Ed25519 public key."""
    return PeerId(base58.b58encode(PEER_ID_PREFIX + public_key).decode())


@lru_cache(maxsize=MEMBERS_MAX)  # base58 and the spelling check cost 40 us
def public_key_from_peer_id(peer_id: str) -> bytes | None:
    """Return the 32-byte Ed25519 key inside ``peer_id``, or None if there is none.

    Each key has one accepted spelling, although base58 decoders skip trailing white space.
    """
    if len(peer_id) != _PEER_ID_CHARACTERS:
        return None
    try:
        raw = base58.b58decode(peer_id)
    except ValueError:
        return None
    public_key = raw[len(PEER_ID_PREFIX) :]
    return public_key if peer_id_from_public_key(public_key) == peer_id else None


def verify(signer: PeerId, message: bytes, signature: bytes) -> bool:
    """Check an Ed25519 signature with the key inside a peer id; any malformed part is invalid."""
    public_key = public_key_from_peer_id(signer)
    if public_key is None or len(signature) != SIGNATURE_BYTES:
        return False
    try:
        Ed25519PublicKey.from_public_bytes(public_key).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


def reveal_output(signer: PeerId, alpha: bytes, proof: bytes) -> bytes | None:
    """Return the 64-byte output of a key's verifiable random function; None: a bad proof."""
    public_key = public_key_from_peer_id(signer)
    return None if public_key is None else vrf.output(public_key, alpha, proof)


class Signer(Protocol):
    """Signing key of one peer id."""

    @property
    def peer_id(self) -> PeerId:
        """The peer id of the key."""

    def sign(self, message: bytes) -> bytes:
        """Return the 64-byte signature of ``message``."""

    def prove(self, alpha: bytes) -> bytes:
        """Return the 80-byte proof of the key's random output for ``alpha``."""


class Identity:
    """A node's Ed25519 key pair, derived from its 32-byte seed."""

    def __init__(self, seed: bytes) -> None:
        self._private_key = Ed25519PrivateKey.from_private_bytes(seed)
        self._seed = seed
        self.public_key = self._private_key.public_key().public_bytes(
            Encoding.Raw, PublicFormat.Raw
        )
        self.peer_id = peer_id_from_public_key(self.public_key)

    def sign(self, message: bytes) -> bytes:
        """Return the 64-byte signature of ``message``."""
        return self._private_key.sign(message)

    def prove(self, alpha: bytes) -> bytes:
        """Return the 80-byte proof of the key's random output for ``alpha``."""
        return vrf.prove(self._seed, self.public_key, alpha)

    def to_protobuf(self) -> bytes:
        """Return the libp2p ``PrivateKey`` protobuf, the content of ``identity.key``."""
        return PRIVATE_KEY_PREFIX + self._seed + self.public_key

    @classmethod
    def from_protobuf(cls, data: bytes) -> "Identity":
        """Read ``identity.key``; raises ``ValueError`` if it is not a consistent Ed25519 key."""
        if len(data) != len(PRIVATE_KEY_PREFIX) + 64 or not data.startswith(PRIVATE_KEY_PREFIX):
            raise ValueError("not a libp2p Ed25519 private key")
        identity = cls(data[len(PRIVATE_KEY_PREFIX) :][:32])
        if identity.public_key != data[-32:]:
            raise ValueError("the public half does not belong to the private half")
        return identity


TensorEntry = tuple[str, str, tuple[int, ...], Digest]
"""Name, safetensors dtype (``F32``, ``BF16``), shape, BLAKE3 of the raw bytes."""


def policy_digest(tensors: Iterable[TensorEntry]) -> Digest:
    """Return the digest of a set of tensors, independent of their order."""
    return digest(encode(sorted(tensors)))

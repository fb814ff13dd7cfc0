"""Signatures for simulations at the cost of one hash, with a tap on gossiped messages.

The keyed scheme stands in for Ed25519. Signing needs the simulation's secret, and only the signers
of a node's own keys hold it. A gossiped message is signed once, and verified once by each node on
first sight; ``traced`` records it there.
"""

from collections.abc import Callable

from blake3 import blake3
from typing_extensions import override

from protocol.core.crypto import (
    SIGNATURE_BYTES,
    Identity,
    Output,
    Signer,
    Verifier,
    peer_id_from_public_key,
    reveal_output,
)
from protocol.core.crypto import verify as verify_ed25519
from protocol.core.types import PeerId
from protocol.core.vrf import PROOF_BYTES
from protocol.gossipsub.message import SIGN_PREFIX
from simulations.runtime.cores import REVEAL_SECONDS, SIGNATURE_SECONDS, Core

Sighting = Callable[[str, bytes, bool], None]
"""``(topic, signature, ours)``: called when a node publishes or first sees a gossiped message."""


class KeyedSigner(Signer):
    """The ``Signer`` port with a hash for a signature."""

    def __init__(self, secret: bytes, public_key: bytes) -> None:
        self._secret = secret
        self._peer_id = peer_id_from_public_key(public_key)

    @property
    @override
    def peer_id(self) -> PeerId:
        return self._peer_id

    @override
    def sign(self, message: bytes) -> bytes:
        return _keyed(self._peer_id, message, self._secret)

    @override
    def prove(self, alpha: bytes) -> bytes:
        return _keyed(self._peer_id, alpha, self._secret, PROOF_BYTES)


def _keyed(signer: PeerId, message: bytes, secret: bytes, length: int = SIGNATURE_BYTES) -> bytes:
    return blake3(signer.encode() + message, key=secret).digest(length)


class Scheme:
    """Signature scheme of a simulation: ``keyed`` (``secret`` has 32 bytes) or ``ed25519``."""

    def __init__(self, name: str, secret: bytes) -> None:
        self._ed25519 = name == "ed25519"
        self._secret = secret
        self.verifier: Verifier = verify_ed25519 if self._ed25519 else self._verify_keyed
        self.output: Output = reveal_output if self._ed25519 else self._output_keyed

    def signer(self, seed: bytes) -> Signer:
        """Return the signer of the key derived from ``seed`` (32 bytes)."""
        return Identity(seed) if self._ed25519 else KeyedSigner(self._secret, seed)

    def _verify_keyed(self, signer: PeerId, message: bytes, signature: bytes) -> bool:
        return _keyed(signer, message, self._secret) == signature

    def _output_keyed(self, signer: PeerId, alpha: bytes, proof: bytes) -> bytes | None:
        return proof if _keyed(signer, alpha, self._secret, PROOF_BYTES) == proof else None


class TracedSigner(Signer):
    """Signs for one node and records its gossip."""

    def __init__(self, signer: Signer, sighting: Sighting) -> None:
        self._signer = signer
        self._sighting = sighting

    @property
    @override
    def peer_id(self) -> PeerId:
        return self._signer.peer_id

    @override
    def sign(self, message: bytes) -> bytes:
        signature = self._signer.sign(message)
        if message.startswith(SIGN_PREFIX):
            self._sighting(_topic(message), signature, True)
        return signature

    @override
    def prove(self, alpha: bytes) -> bytes:
        return self._signer.prove(alpha)


def traced(verify: Verifier, sighting: Sighting, core: Core) -> Verifier:
    """Return the verifier of one node, which records gossiped messages on first sight.

    Each check costs the node the time of one Ed25519 check. A gossiped message costs two: its
    envelope is checked next, though here only by the first node (``Opened`` is shared).
    """

    def verified(signer: PeerId, message: bytes, signature: bytes) -> bool:
        valid = verify(signer, message, signature)
        core.spend(SIGNATURE_SECONDS)
        if valid and message.startswith(SIGN_PREFIX):
            core.spend(SIGNATURE_SECONDS)
            sighting(_topic(message), signature, False)
        return valid

    return verified


def charged(output: Output, core: Core) -> Output:
    """Return the check of reveals of one node, which costs it the time of one ECVRF check."""

    def checked(signer: PeerId, alpha: bytes, proof: bytes) -> bytes | None:
        core.spend(REVEAL_SECONDS)
        return output(signer, alpha, proof)

    return checked


def _topic(message: bytes) -> str:
    """Return the last component of a gossiped message's topic, which ends the signed bytes."""
    return message[-24:].rpartition(b"/")[2].decode("ascii", "replace")

"""Frames that waste a gossip router's time: well formed up to one fault each."""

from collections.abc import Callable
from dataclasses import replace

from node.network.streams.protocols import topic_name
from protocol.core.crypto import SIGNATURE_BYTES, Signer
from protocol.core.rng import Rng
from protocol.core.types import DIGEST_BYTES, Topic
from protocol.gossipsub.message import MESSAGE_ID_BYTES, GossipMessage, encode_message, sign_message
from protocol.gossipsub.rpc import (
    RPC_BYTES_MAX,
    IHave,
    Prune,
    Rpc,
    Subscription,
    encode_rpc,
    frame,
    uvarint,
)
from protocol.messages import ENVELOPE_BYTES_MAX, Certificate, RolloutCommit, seal
from protocol.replica.replica import Replica

MESSAGES_PER_BURST = 32
CUT_SHARE = 0.02
"""Share of bursts that end with an unacceptable frame, which ends the stream."""

TOPICS = 16
IDS = 32
"""Subscriptions and message ids in one frame."""


class Junk:
    """Makes frames that waste a gossip router's time, with one fault each."""

    def __init__(self, replica: Replica, signer: Signer, rng: Rng) -> None:
        self._replica = replica
        self._signer = signer
        self._rng = rng
        self._seqno = 0
        self._kinds: tuple[Callable[[], bytes], ...] = (
            self.noise,
            self.badly_signed,
            self._oversize,
            self._no_envelope,
            self._impossible_commit,
            self._certificate_of_no_validator,
            self._repeated_envelope,
            self._subscriptions,
            self._control,
        )

    def burst(self) -> bytes:
        """Return some frames of random kinds."""
        kinds = self._kinds
        frames = [kinds[self._rng.below(len(kinds))]() for _ in range(MESSAGES_PER_BURST)]
        if self._rng.uniform() < CUT_SHARE:
            frames.append(uvarint(2 * RPC_BYTES_MAX))
        return b"".join(frames)

    def noise(self) -> bytes:
        """Return a frame without an RPC."""
        return frame(self._rng.bytes(64))

    def badly_signed(self) -> bytes:
        """Return a message with an invalid signature."""
        message = self._signed(Topic.COMMITS, self._rng.bytes(256))
        return _published(replace(message, signature=bytes(SIGNATURE_BYTES)))

    def _oversize(self) -> bytes:
        return _published(self._signed(Topic.COMMITS, bytes(ENVELOPE_BYTES_MAX + 1)))

    def _no_envelope(self) -> bytes:
        return _published(self._signed(Topic.CERTIFICATES, self._rng.bytes(256)))

    def _impossible_commit(self) -> bytes:
        """Return an own commit to more sequences than a rollout has, or of a far epoch."""
        manifest = self._replica.manifest
        count = manifest.sampling.group_size * manifest.sampling.prompts_per_rollout
        far = self._rng.below(2)
        commit = RolloutCommit(
            epoch=10**9 * far,
            version=0,
            checkpoint=self._rng.bytes(DIGEST_BYTES),
            slot=0,
            body=self._rng.bytes(DIGEST_BYTES),
            body_bytes=1,
            sequences=count if far else 2 * count,
            tokens=1,
        )
        envelope = seal(commit, self._replica.run_id, self._signer).envelope
        return _published(self._signed(Topic.COMMITS, envelope))

    def _certificate_of_no_validator(self) -> bytes:
        """Return a certificate of a known commit, signed by a key that is no validator."""
        waiting = self._replica.ledger.commits.open_entries()
        commit = waiting[0].commit.digest if waiting else self._rng.bytes(DIGEST_BYTES)
        page = self._replica.pages.drawing(waiting[0].commit.digest) if waiting else None
        certificate = Certificate(
            commit=commit,
            page=self._rng.bytes(DIGEST_BYTES) if page is None else page.digest,
            escalated=False,
            accepted=False,
            verdicts=(self._rng.bytes(64),),
        )
        envelope = seal(certificate, self._replica.run_id, self._signer).envelope
        return _published(self._signed(Topic.CERTIFICATES, envelope))

    def _repeated_envelope(self) -> bytes:
        """Return a known envelope in a new gossip message."""
        records = self._replica.roster.records()
        if not records:
            return self.noise()
        return _published(self._signed(Topic.ROSTER, self._rng.sample(records, 1)[0].envelope))

    def _subscriptions(self) -> bytes:
        topics = (self._rng.bytes(16).hex() for _ in range(TOPICS))
        return frame(encode_rpc(Rpc(subscriptions=tuple(Subscription(True, t) for t in topics))))

    def _control(self) -> bytes:
        """Return IHAVE of nonexistent messages, IWANT for others, and mesh changes."""
        ids = tuple(self._rng.bytes(MESSAGE_ID_BYTES) for _ in range(IDS))
        topics = [topic_name(topic, self._replica.run_id) for topic in Topic]
        rpc = Rpc(
            ihave=(IHave(topics[0], ids),),
            iwant=ids,
            graft=tuple(topics),
            prune=(Prune(topics[0], 1),),
        )
        return frame(encode_rpc(rpc))

    def _signed(self, topic: Topic, data: bytes) -> GossipMessage:
        self._seqno += 1
        name = topic_name(topic, self._replica.run_id)
        return sign_message(self._signer, name, data, self._seqno)


def _published(message: GossipMessage) -> bytes:
    return frame(encode_rpc(Rpc(publish=(encode_message(message),))))

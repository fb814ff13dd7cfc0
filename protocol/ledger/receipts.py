"""Work of a final page: the rollouts that it decides, and the versions that become final with it.

A page states the digest of these bytes. They name keys, not commits alone, so the accounts of a run
follow from them without the commits, certificates and manifests behind them.
"""

from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

from protocol.core.codec import decode, encode
from protocol.core.crypto import digest, peer_id_from_public_key, public_key_from_peer_id
from protocol.core.faults import Fault, FaultCode
from protocol.core.types import DIGEST_BYTES, MEMBERS_MAX, PeerId
from protocol.messages import LISTED_MAX, OMITTED_MAX, ROUND_TRAINERS_MAX, VERDICTS_MAX

WORK_BYTES_MAX = 256 * 1024
"""Maximum encoded work of a page; 200 receipts with three checkers each take 40 KB."""

STEPS_MAX = 8
"""Maximum versions that become final with one page. With the largest batches and rounds, and 200
receipts of 15 checkers each, they take 254 KB."""

LEARNED_MAX = 256
"""Maximum workers of one version, as many as commits in its batch."""

REASON_CHARACTERS_MAX = 200
"""As in a verdict."""

COUNT_MAX = 2**53
"""Maximum of every number, as in messages."""

_peer = lru_cache(maxsize=MEMBERS_MAX)(peer_id_from_public_key)  # base58 costs 6 us


class Receipt(NamedTuple):
    """One decided rollout."""

    commit: bytes
    """Digest of the commit."""
    worker: PeerId
    version: int
    slot: int
    evaluation: bool
    """True if the slot evaluates its version."""
    tokens: int
    reason: str
    """``accepted``, or the reason of the rejection."""
    checkers: tuple[PeerId, ...]
    """Council members whose verdicts decided, sorted: the order of peer ids is that of keys."""


class Step(NamedTuple):
    """One version that became final."""

    version: int
    manifest: bytes
    """Digest of the checkpoint manifest."""
    trainer: PeerId
    learned: tuple[tuple[PeerId, int, int], ...]
    """Workers whose rollouts it learned from, sorted, with the number of rollouts and tokens."""
    omitted: int = 0
    """Final rollouts that its trainer drew and left out (``protocol.replica.batch_rule``)."""
    partners: tuple[PeerId, ...] = ()
    """Other trainers whose results its round took, sorted; the credit is divided among all."""

    def shares(self, credit: int) -> list[tuple[PeerId, int]]:
        """Divide credit among the trainer and its partners; the trainer gets what is left over."""
        share, rest = divmod(credit, 1 + len(self.partners))
        return [(self.trainer, share + rest), *((one, share) for one in self.partners)]


class Reversal(NamedTuple):
    """An outcome that a re-examination has overturned."""

    receipt: Receipt
    """The receipt of the page that decided the commit."""
    reason: str
    """``accepted``, or the reason of the late rejection."""


class PageWork(NamedTuple):
    """Everything that a final page decides about work."""

    receipts: tuple[Receipt, ...] = ()
    """In the order of the page."""
    steps: tuple[Step, ...] = ()
    """By version."""
    overturned: tuple[Reversal, ...] = ()
    """In the order of the page."""

    def encoded(self) -> bytes:
        """Return the canonical bytes; empty for no work at all."""
        if not any(self):
            return b""
        receipts = list(map(_encoded, self.receipts))
        overturned = [(_encoded(one.receipt), one.reason) for one in self.overturned]
        steps = [
            (
                *one[:2],
                _key(one.trainer),
                [(_key(peer), *rest) for peer, *rest in one.learned],
                one.omitted,
                *([list(map(_key, one.partners))] if one.partners else []),
            )
            for one in self.steps
        ]
        return encode({"overturned": overturned, "receipts": receipts, "steps": steps})

    @property
    def digest(self) -> bytes:
        """Digest of the encoded work, as a page states it; empty for no work at all."""
        return work_digest(self.encoded())


def work_digest(data: bytes) -> bytes:
    """Return the digest of encoded work, as a page states it; empty for no work at all."""
    return digest(data) if data else b""


def decode_work(data: bytes) -> PageWork | Fault:
    """Decode what ``PageWork.encoded`` returns; everything else is a ``Fault``.

    A key is any 32 bytes, as in a peer id. A test of the curve point would refuse work of keys
    whose signatures some Ed25519 libraries accept, and no node could then follow the page.
    """
    if not data:
        return PageWork()
    fields = decode(data, bytes_max=WORK_BYTES_MAX)
    match fields:
        case Fault():
            return fields
        case {
            "overturned": tuple(overturned),
            "receipts": tuple(receipts),
            "steps": tuple(steps),
        } if len(fields) == 3:
            pass
        case _:
            return _fault("not the work of a page")
    if not receipts and not steps and not overturned:
        return _fault("no work has no encoding")
    if len(receipts) + len(overturned) > LISTED_MAX or len(steps) > STEPS_MAX:
        return _fault("too many receipts or steps")
    decoded = [_receipt(one) for one in receipts]
    versions = [_step(one) for one in steps]
    reversals = [_reversal(one) for one in overturned]
    if None in decoded or None in versions or None in reversals:
        return _fault("a bad receipt or step")
    work = PageWork(
        tuple(one for one in decoded if one is not None),
        tuple(one for one in versions if one is not None),
        tuple(one for one in reversals if one is not None),
    )
    named = [*work.receipts, *(one.receipt for one in work.overturned)]
    if len({one.commit for one in named}) != len(named):
        return _fault("a commit twice")
    if not _ascends([one.version for one in work.steps]):
        return _fault("versions that are not in order")
    return work


def is_count(value: object) -> bool:
    """Return whether a decoded value is a number from 0 to ``COUNT_MAX``."""
    return type(value) is int and 0 <= value <= COUNT_MAX


def _receipt(value: Any) -> Receipt | None:
    match value:
        case (
            bytes(commit),
            bytes(worker),
            version,
            slot,
            bool(evaluation),
            tokens,
            str(reason),
            tuple(checkers),
        ):
            pass
        case _:
            return None
    if len(commit) != DIGEST_BYTES or not _is_key(worker):
        return None
    if not all(map(is_count, (version, slot, tokens))) or len(reason) > REASON_CHARACTERS_MAX:
        return None
    if len(checkers) > VERDICTS_MAX or not all(map(_is_key, checkers)) or not _ascends(checkers):
        return None
    peers = tuple(_peer(key) for key in checkers)
    return Receipt(commit, _peer(worker), version, slot, evaluation, tokens, reason, peers)


def _reversal(value: Any) -> Reversal | None:
    match value:
        case (receipt, str(reason)) if len(reason) <= REASON_CHARACTERS_MAX:
            found = _receipt(receipt)
            return None if found is None else Reversal(found, reason)
    return None


def _step(value: Any) -> Step | None:
    match value:
        case (version, bytes(manifest), bytes(trainer), tuple(learned), omitted):
            partners: tuple[Any, ...] = ()
        case (version, bytes(manifest), bytes(trainer), tuple(learned), omitted, (_, *_) as found):
            partners = found  # a step without any is shorter
        case _:
            return None
    if not is_count(version) or len(manifest) != DIGEST_BYTES or not _is_key(trainer):
        return None
    if not is_count(omitted) or omitted > OMITTED_MAX:
        return None
    if len(learned) > LEARNED_MAX or not all(map(_is_share, learned)):
        return None
    if not _ascends([one[0] for one in learned]):
        return None
    if len(partners) > ROUND_TRAINERS_MAX or not all(map(_is_key, partners)):
        return None
    if not _ascends(partners) or trainer in partners:
        return None
    shares = tuple((_peer(key), rollouts, tokens) for key, rollouts, tokens in learned)
    return Step(version, manifest, _peer(trainer), shares, omitted, tuple(map(_peer, partners)))


def _is_share(value: Any) -> bool:
    match value:
        case (key, rollouts, tokens):
            return _is_key(key) and is_count(rollouts) and is_count(tokens)
    return False


def _is_key(value: object) -> bool:
    return type(value) is bytes and len(value) == DIGEST_BYTES


def _ascends(values: Any) -> bool:
    """Return whether values are sorted and distinct."""
    return all(one < other for one, other in pairwise(values))


def _encoded(receipt: Receipt) -> tuple[object, ...]:
    checkers = [_key(peer) for peer in receipt.checkers]
    return receipt.commit, _key(receipt.worker), *receipt[2:7], checkers


def _key(peer: PeerId) -> bytes:
    key = public_key_from_peer_id(peer)
    if key is None:
        raise ValueError(f"{peer!r} is not an Ed25519 peer id")
    return key


def _fault(detail: str) -> Fault:
    return Fault(FaultCode.BAD_FIELDS, detail)

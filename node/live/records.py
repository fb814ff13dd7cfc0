"""Directory records from untrusted peers: signed, short-lived, and limited in size and number.

By default hivemind stores everything. The validator binds a record to its owner: the sub-key is the
owner's peer id. The owner's key signs key, sub-key, value and expiry for one run. Validators
receive keys as SHA-1 of their name, so the allow-list holds hashes. The storage bounds the cost of
valid records, because an attacker can create a thousand keys.
"""

import heapq
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Hashable, Sequence
from functools import partial
from typing import Any

from hivemind.dht import DHTID
from hivemind.dht.protocol import DHTProtocol
from hivemind.dht.storage import DHTLocalStorage, DictionaryDHTValue
from hivemind.dht.validation import DHTRecord, RecordValidatorBase
from hivemind.utils.serializer import MSGPackSerializer
from hivemind.utils.timed_storage import ValueWithExpiration

from node.network.resources.dht_call_limiter import DhtCallLimiter
from protocol.core import codec
from protocol.core.containers import LruCache
from protocol.core.crypto import SIGNATURE_BYTES, Signer, digest, signing_bytes, verify
from protocol.core.faults import Fault, FaultCode
from protocol.core.types import PeerId, RunId
from protocol.membership.directory_buckets import OWNERS_PER_KEY_MAX, Buckets
from roles.ports.transport import Trust

RECORD_BYTES_MAX = 4096
"""A stored value with its signature; a node record has a tenth of this."""

TTL_SECONDS_MAX = 3600.0
"""Without this limit, a record that expires in 1000 years could never be replaced."""

NEAREST_MAX = 20
"""Neighbours accepted per reply: hivemind's bucket size, so that an honest reply fits."""

_TRUSTED = 2
"""Highest rank (trusted); never evicted."""

_SIGNATURE_KIND = "directory-record"
_SUBKEY_BYTES_MAX = 64
VERIFIED_MAX = 4096


def key_id(key: str) -> bytes:
    """Return the 20-byte DHT id of ``key``."""
    return bytes(DHTID.generate(source=key).to_bytes())


def node_id(peer: str) -> DHTID:
    """Return the DHT id of ``peer``; every node derives the same."""
    return DHTID.generate(source=peer)


class RecordValidator(RecordValidatorBase):  # type: ignore[misc]  # hivemind is untyped
    """Signs our records and validates all others, for one run."""

    def __init__(
        self, signer: Signer, run_id: RunId, buckets: Buckets, now: Callable[[], float]
    ) -> None:
        self._signer = signer
        self._run_id = run_id
        self._buckets = buckets
        self._keys = {key_id(key): key for key in buckets.keys}
        self._now = now
        self._verified = LruCache[bytes, bool](VERIFIED_MAX)

    def validate(self, record: DHTRecord) -> bool:
        """Return whether ``record`` is valid; never raises."""
        try:
            return self._is_valid(record)
        except Exception:  # noqa: BLE001 - untrusted bytes
            return False

    def sign_value(self, record: DHTRecord) -> bytes:
        """Append our signature to the value."""
        signature = self._signer.sign(self._signed_bytes(record, record.value))
        return bytes(record.value) + signature

    def strip_value(self, record: DHTRecord) -> bytes:
        """Remove the signature from a valid record's value."""
        return bytes(record.value[:-SIGNATURE_BYTES])

    def _is_valid(self, record: DHTRecord) -> bool:
        key = self._keys.get(record.key)
        if key is None or not SIGNATURE_BYTES < len(record.value) <= RECORD_BYTES_MAX:
            return False
        if not record.expiration_time <= self._now() + TTL_SECONDS_MAX:  # NaN is refused too
            return False
        owner = codec.decode(record.subkey, bytes_max=_SUBKEY_BYTES_MAX)
        value, signature = record.value[:-SIGNATURE_BYTES], record.value[-SIGNATURE_BYTES:]
        content = codec.decode(value, bytes_max=RECORD_BYTES_MAX)
        if not isinstance(owner, str) or not isinstance(content, bytes):
            return False
        if not self._buckets.may_list(key, PeerId(owner)):
            return False
        return self._verify(PeerId(owner), self._signed_bytes(record, value), signature)

    def _verify(self, owner: PeerId, message: bytes, signature: bytes) -> bool:
        """Verify a signature once: replicas return the same records with each lookup."""
        seen = digest(signature + message)  # the message contains the owner
        found = self._verified.get_or_compute(
            seen, lambda _key: verify(owner, message, signature) or Fault(FaultCode.BAD_SIGNATURE)
        )
        return found is True

    def _signed_bytes(self, record: DHTRecord, value: bytes) -> bytes:
        fields = [record.key, record.subkey, value, float(record.expiration_time)]
        return signing_bytes(_SIGNATURE_KIND, self._run_id, codec.encode(fields))


class BoundedStorage(DHTLocalStorage):  # type: ignore[misc]  # hivemind is untyped
    """hivemind's storage with at most ``OWNERS_PER_KEY_MAX`` sub-keys per key.

    It also fixes three defects. A lookup merges replies into the stored dictionary itself. A
    refused store shortens the lifetime of the stored record. Every store adds a heap entry that
    lasts until the record expires.

    A full key evicts by rank: trusted peers displace untrusted ones, and members displace other
    keys. Among equals, a record from a smaller address block displaces one of the largest.
    """

    def __init__(self, trust: Trust | None = None) -> None:
        super().__init__()
        self._trust = trust or Trust()

    def get(self, key: DHTID) -> ValueWithExpiration | None:
        """Return a copy, into which lookups may merge."""
        found = super().get(key)
        if found is None or not isinstance(found.value, DictionaryDHTValue):
            return found
        copy = DictionaryDHTValue()
        for subkey, (value, expires_at) in found.value.items():
            copy.store(subkey, value, expires_at)
        return ValueWithExpiration(copy, found.expiration_time)

    def fullest(self) -> int:
        """Return the number of records of the fullest key."""
        return max((len(entries.value) for entries in self.data.values()), default=0)

    def store_subkey(self, key: DHTID, subkey: str, value: bytes, expiration_time: float) -> bool:
        """Store one owner's record; False when it is not newer, or when there is no room."""
        found = super().get(key)
        entries = DictionaryDHTValue() if found is None else found.value
        known = entries.get(subkey)
        if known is None and len(entries) >= OWNERS_PER_KEY_MAX:
            least = self._least(PeerId(subkey), [PeerId(other) for other in entries.data])
            if least is None:
                return False
            del entries[least]
        if known is not None and known.expiration_time >= expiration_time:
            return False
        if not entries.store(subkey, value, expiration_time):
            return False
        if found is None or expiration_time > found.expiration_time:
            self.store(key, entries, expiration_time)
        _compact(entries)
        _compact(self)
        return True

    def _least(self, incoming: PeerId, owners: Sequence[PeerId]) -> PeerId | None:
        """Choose the owner to evict for ``incoming``, or None."""
        ranks = {owner: self._rank(owner) for owner in owners}
        lowest = min(ranks.values())
        own_rank = self._rank(incoming)
        if own_rank < lowest or lowest == _TRUSTED:
            return None
        blocks = {owner: self._block(owner) for owner, rank in ranks.items() if rank == lowest}
        crowd = Counter(blocks.values())
        most = max(crowd.values())
        if own_rank == lowest and most <= crowd[self._block(incoming)] + 1:
            return None
        return next(owner for owner, block in blocks.items() if crowd[block] == most)

    def _rank(self, owner: PeerId) -> int:
        if self._trust.trusted(owner):
            return _TRUSTED
        return int(self._trust.member(owner))

    def _block(self, owner: PeerId) -> Hashable:
        """Return the address block of ``owner``; None for all owners that are not connected."""
        block = self._trust.block(owner)
        return None if block == owner else block


def harden(
    protocol: DHTProtocol,
    storage: BoundedStorage,
    validator: RecordValidator,
    calls: DhtCallLimiter,
) -> None:
    """Bound the storage and computation that untrusted peers can use in hivemind.

    Its cache can hide the storage (one cached record hides a whole key), so both become one. One
    invalid record discarded the valid ones beside it; now only the invalid one is dropped. A peer
    could enter the routing table, and name others in its replies, under any ids near a victim's;
    now each peer has only the id derived from its peer id. A reply with an infinite expiry never
    ended a search. 64 kB of nested sequence headers took 0.1 s and 70 MB to parse. And each new
    peer causes a scan of the whole storage, which ``calls`` charges to the peer.
    """
    MSGPackSerializer.loads = _loads_whole
    MSGPackSerializer._decode_ext_types = _decode_whole  # noqa: SLF001 - no public way
    protocol.storage = protocol.cache = storage
    protocol._validate_dictionary = partial(_keep_valid, validator)  # noqa: SLF001 - no public way
    protocol.update_routing_table = partial(_update_bound, protocol.update_routing_table, calls)
    protocol.call_find = partial(_find_bound, protocol.call_find)


_decode_any = MSGPackSerializer._decode_ext_types  # noqa: SLF001 - hivemind's own
_loads_any = MSGPackSerializer.loads


def _loads_whole(data: bytes) -> object:
    codec.require_whole(data)
    return _loads_any(data)


def _decode_whole(type_code: int, data: bytes) -> object:
    codec.require_whole(data)
    return _decode_any(type_code, data)


def _keep_valid(validator: RecordValidator, key: bytes, entries: DictionaryDHTValue) -> bool:
    with entries.freeze():
        for subkey in list(entries.data)[OWNERS_PER_KEY_MAX:]:  # before any signature is verified
            del entries[subkey]
        for subkey, (value, expires_at) in list(entries.items()):
            record = DHTRecord(key, MSGPackSerializer.dumps(subkey), value, expires_at)
            if not validator.validate(record):
                del entries[subkey]
    return True


async def _update_bound(
    update: Callable[[Any, Any, bool], Awaitable[None]],
    calls: DhtCallLimiter,
    node: DHTID | None,
    peer: Any,
    responded: bool = True,  # noqa: FBT002 - hivemind's signature
) -> None:
    name = PeerId(peer.to_base58())
    if node is None or node == node_id(name):
        with calls.charged(name):
            await update(node, peer, responded)


async def _find_bound(
    find: Callable[[Any, Any], Awaitable[Any]], peer: Any, keys: Collection[DHTID]
) -> Any:
    answer = await find(peer, keys)
    if not answer:
        return answer
    bounded = {}
    for key, (found, nearest) in answer.items():
        value = found if found is not None and math.isfinite(found.expiration_time) else None
        honest = [(n, p) for n, p in nearest.items() if n == node_id(p.to_base58())]
        bounded[key] = value, dict(honest[:NEAREST_MAX])
    return bounded


def _compact(storage: DHTLocalStorage | DictionaryDHTValue) -> None:
    """Drop heap entries of replaced records when they are the majority."""
    if len(storage.expiration_heap) > 2 * len(storage.key_to_heap) + 16:
        storage.expiration_heap = list(storage.key_to_heap.values())
        heapq.heapify(storage.expiration_heap)

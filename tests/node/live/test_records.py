import math
import tracemalloc

import msgpack
import pytest
from hivemind.dht import DHTID
from hivemind.dht.protocol import DHTProtocol
from hivemind.dht.storage import DictionaryDHTValue
from hivemind.dht.validation import DHTRecord
from hivemind.utils.serializer import MSGPackSerializer
from hivemind.utils.timed_storage import get_dht_time
from hypothesis import given
from hypothesis import strategies as st

from node.live import records
from node.live.records import BoundedStorage, RecordValidator, key_id
from node.network.resources.dht_call_limiter import DhtCallLimiter
from protocol.core.crypto import Identity, verify
from protocol.core.types import RunId
from protocol.membership.directory_buckets import Buckets
from roles.ports.transport import Trust

NOW = 1_000_000.0
RUN = RunId(b"r" * 32)
OTHER_RUN = RunId(b"s" * 32)
BUCKETS = Buckets(RUN)
KEY = BUCKETS.key(0, 0)
OWNER, OTHER = Identity(b"1" * 32), Identity(b"2" * 32)
OTHER_KEY = BUCKETS.key_of(OWNER.peer_id, 1)
NOT_ITS_KEY = BUCKETS.key(1, 1 - int(OTHER_KEY[-1]))
KEY_ID = DHTID.generate(source=KEY)


def validator(identity=OWNER, run_id=RUN) -> RecordValidator:
    return RecordValidator(identity, run_id, BUCKETS, lambda: NOW)


def record(
    value=b"hello", expires_at=NOW + 60, owner=OWNER.peer_id, key=KEY, signer=None
) -> DHTRecord:
    subkey = MSGPackSerializer.dumps(owner)
    unsigned = DHTRecord(key_id(key), subkey, MSGPackSerializer.dumps(value), expires_at)
    signed = (signer or validator()).sign_value(unsigned)
    return DHTRecord(unsigned.key, subkey, signed, expires_at)


def changed(base: DHTRecord, **fields) -> DHTRecord:
    return DHTRecord(**{**vars(base), **fields})


def test_a_record_signed_by_its_owner_is_valid_and_strips_to_its_value():
    good = record()
    assert validator().validate(good)
    assert validator(OTHER).validate(good)
    assert MSGPackSerializer.loads(validator().strip_value(good)) == b"hello"


def test_an_owner_is_listed_in_its_own_bucket():
    assert validator().validate(record(key=OTHER_KEY))


def test_the_size_limit_is_exact():
    assert validator().validate(record(bytes(records.RECORD_BYTES_MAX - 64 - 3)))
    assert not validator().validate(record(bytes(records.RECORD_BYTES_MAX - 64 - 2)))


def test_the_life_limit_is_exact():
    assert validator().validate(record(expires_at=NOW + records.TTL_SECONDS_MAX))
    assert not validator().validate(record(expires_at=NOW + records.TTL_SECONDS_MAX + 1))


@pytest.mark.parametrize(
    "bad",
    [
        record(owner=OTHER.peer_id),
        record(owner="nobody"),
        record(owner=None),
        record(owner=7),
        record(value="text is not bytes"),
        record(value={"a": 1}),
        record(key="run/elsewhere"),
        record(key=NOT_ITS_KEY),
        changed(record(), expiration_time=math.inf),
        changed(record(), expiration_time=math.nan),
        changed(record(), expiration_time=NOW + 61),
        changed(record(), key=key_id(OTHER_KEY)),
        changed(record(), subkey=b""),
        changed(record(), subkey=DHTProtocol.IS_REGULAR_VALUE),
        changed(record(), subkey=b"\xd9\x34" + OWNER.peer_id.encode()[:-1]),
        changed(record(), value=b""),
        changed(record(), value=bytes(64)),
        changed(record(), value=None),
        changed(record(), value=record().value[:-1] + bytes([record().value[-1] ^ 1])),
        record(signer=validator(run_id=OTHER_RUN)),
        record(signer=validator(OTHER)),
    ],
)
def test_what_breaks_a_rule_is_refused(bad):
    assert not validator().validate(bad)


@given(st.binary(max_size=40), st.binary(max_size=80), st.binary(max_size=300), st.floats())
def test_random_bytes_are_refused_without_an_exception(key, subkey, value, expires_at):
    judge = validator()
    assert not judge.validate(DHTRecord(key, subkey, value, expires_at))
    assert not judge.validate(DHTRecord(bytes(KEY_ID.to_bytes()), subkey, value, expires_at))


@given(st.data())
def test_a_flipped_bit_anywhere_is_refused(data):
    good = record()
    field = data.draw(st.sampled_from(["key", "subkey", "value"]))
    raw = bytearray(getattr(good, field))
    position = data.draw(st.integers(0, len(raw) * 8 - 1))
    raw[position // 8] ^= 1 << position % 8
    judge = validator()
    assert judge.validate(good)
    assert not judge.validate(changed(good, **{field: bytes(raw)}))
    assert judge.validate(good)


def test_the_last_signatures_are_verified_once_and_what_is_remembered_is_bounded(monkeypatch):
    monkeypatch.setattr(records, "VERIFIED_MAX", 3)
    judge, verified = validator(), []

    def counting(*signed):
        verified.append(signed)
        return verify(*signed)

    monkeypatch.setattr(records, "verify", counting)
    several = [record(bytes([n])) for n in range(8)]
    assert all(judge.validate(one) for one in (*several, *several[5:]))
    assert len(verified) == 8
    assert all(judge.validate(one) for one in several[:5])
    assert len(verified) == 13


def test_an_owner_beyond_the_limit_finds_no_room_and_a_known_one_does(monkeypatch):
    monkeypatch.setattr(records, "OWNERS_PER_KEY_MAX", 2)
    storage, now = BoundedStorage(), get_dht_time()
    assert storage.store_subkey(KEY_ID, "a", b"1", now + 10)
    assert storage.store_subkey(KEY_ID, "b", b"1", now + 10)
    assert not storage.store_subkey(KEY_ID, "c", b"1", now + 10)
    assert storage.store_subkey(KEY_ID, "a", b"2", now + 11)
    assert storage.get(KEY_ID).value.get("a").value == b"2"
    assert storage.get(KEY_ID).expiration_time == now + 11


def trusting() -> BoundedStorage:
    """Return a storage in which ``p`` is trusted, ``m`` is a member, and the digit is a block."""
    return BoundedStorage(
        Trust(
            lambda owner: owner.startswith("p"),
            lambda owner: owner if owner.endswith("?") else owner[-1],
            lambda owner: owner[0] in "pm",
        )
    )


def takes(storage: BoundedStorage, owners: str) -> str:
    """Offer records in turn; return the owners listed in the end."""
    for owner in owners.split():
        storage.store_subkey(KEY_ID, owner, b"1", get_dht_time() + 10)
    return " ".join(sorted(storage.get(KEY_ID).value.data))


@pytest.mark.parametrize(
    ("owners", "listed"),
    [
        ("sa1 pa1 sb1 sc1", "pa1 sa1 sb1"),
        ("sa1 pa1 sb1 pb1", "pa1 pb1 sb1"),
        ("sa1 pa1 sb1 pb1 pc1 pd1", "pa1 pb1 pc1"),
        ("sa1 ma1 sb1 mb1", "ma1 mb1 sb1"),
        ("ma1 mb1 mc1 pa1", "mb1 mc1 pa1"),
        ("ma1 mb1 sa2 mc3", "ma1 mb1 mc3"),
        ("ma1 mb1 mc1 sa2", "ma1 mb1 mc1"),
        ("pa1 pb1 pc1 ma2", "pa1 pb1 pc1"),
        ("sa1 sb1 sc1 sd2", "sb1 sc1 sd2"),
        ("sa1 sb1 sc2 sd2", "sa1 sb1 sc2"),
        ("sa? sb? sc? sd2", "sb? sc? sd2"),
        ("sa1 sb2 sc3 sd?", "sa1 sb2 sc3"),
        ("sa1 sb1 sc2 pa2", "pa2 sb1 sc2"),
    ],
)
def test_who_is_known_finds_room_among_untrusted_peers_and_these_share_it_by_block(
    owners, listed, monkeypatch
):
    monkeypatch.setattr(records, "OWNERS_PER_KEY_MAX", 3)
    assert takes(trusting(), owners) == listed


def test_a_storage_follows_a_trust_that_is_made_later(monkeypatch):
    monkeypatch.setattr(records, "OWNERS_PER_KEY_MAX", 2)
    current = Trust()
    storage = BoundedStorage(Trust.of(lambda: current))
    assert takes(storage, "sa1 sb2 pa3") == "sa1 sb2"
    current = Trust(lambda owner: owner == "pa3", lambda owner: owner[-1], lambda _owner: True)
    assert takes(storage, "pa3") == "pa3 sb2"
    current = Trust(lambda _owner: False, lambda owner: owner[-1], lambda owner: owner == "mc4")
    assert takes(storage, "mc4") == "mc4 pa3"


def test_older_or_expired_records_change_nothing():
    storage, now = BoundedStorage(), get_dht_time()
    assert not storage.store_subkey(KEY_ID, "a", b"0", now - 1)
    assert storage.get(KEY_ID) is None
    assert storage.store_subkey(KEY_ID, "a", b"2", now + 20)
    for expires_at in (now + 10, now + 20):
        assert not storage.store_subkey(KEY_ID, "a", b"1", expires_at)
    assert storage.get(KEY_ID).value.get("a") == (b"2", now + 20)
    assert len(storage.data[KEY_ID].value.expiration_heap) == 1


def test_merging_into_what_was_read_leaves_the_storage_alone():
    storage, now = BoundedStorage(), get_dht_time()
    storage.store_subkey(KEY_ID, "a", b"1", now + 10)
    storage.get(KEY_ID).value.store("b", b"1", now + 10)
    assert storage.get(KEY_ID).value.get("b") is None


def test_replaced_records_leave_no_trail():
    storage, now = BoundedStorage(), get_dht_time()
    for step in range(500):
        assert storage.store_subkey(KEY_ID, "a", b"1", now + 10 + step)
    assert len(storage.expiration_heap) < 50
    assert len(storage.data[KEY_ID].value.expiration_heap) < 50
    assert len(storage.get(KEY_ID).value) == storage.fullest() == 1


keeps_valid = records._keep_valid


def test_a_bad_record_is_dropped_and_the_good_one_beside_it_kept():
    good, bad = record(), record(owner=OTHER.peer_id)
    entries = DictionaryDHTValue()
    with entries.freeze():
        entries.store(OWNER.peer_id, good.value, good.expiration_time)
        entries.store(OTHER.peer_id, bad.value, bad.expiration_time)
        entries.store((1, 2), b"", 0.0)
        assert keeps_valid(validator(), good.key, entries)
        assert list(entries.data) == [OWNER.peer_id]


def test_of_a_dictionary_no_more_signatures_are_checked_than_a_key_has_owners(monkeypatch):
    checked = []
    counted = validator()
    monkeypatch.setattr(counted, "validate", lambda record: checked.append(record.subkey) or True)
    entries = DictionaryDHTValue()
    for number in range(records.OWNERS_PER_KEY_MAX + 10):
        entries.store(f"owner {number}", b"value", get_dht_time() + 60)
    assert keeps_valid(counted, record().key, entries)
    assert len(checked) == len(entries) == records.OWNERS_PER_KEY_MAX


class FakeProtocol:
    def __init__(self, answer) -> None:
        self.answer, self.updates = answer, []

    async def call_find(self, peer, keys):
        return self.answer

    async def update_routing_table(self, node, peer, responded):
        self.updates.append((node, responded))


class FakePeer:
    def __init__(self, name: str) -> None:
        self.name = name

    def to_base58(self) -> str:
        return self.name


async def test_a_peer_enters_the_table_under_its_own_place_only():
    protocol = FakeProtocol({})
    records.harden(protocol, BoundedStorage(), validator(), DhtCallLimiter())
    place = records.node_id("peer")
    await protocol.update_routing_table(DHTID(int(place) ^ 1), FakePeer("peer"))
    await protocol.update_routing_table(place, FakePeer("peer"))
    await protocol.update_routing_table(None, FakePeer("peer"), responded=False)
    assert protocol.updates == [(place, True), (None, False)]


async def test_an_answer_names_few_neighbours_in_their_own_places_and_ends_some_day():
    value = records.ValueWithExpiration(DictionaryDHTValue(), math.inf)
    names = [f"peer{n}" for n in range(30)]
    nearest = {records.node_id(name): FakePeer(name) for name in names}
    forged = {DHTID(int(KEY_ID) ^ 1): FakePeer("liar")}
    protocol = FakeProtocol({KEY_ID: (value, {**forged, **nearest})})
    records.harden(protocol, BoundedStorage(), validator(), DhtCallLimiter())
    found, neighbours = (await protocol.call_find(None, [KEY_ID]))[KEY_ID]
    assert found is None
    assert list(neighbours) == list(nearest)[: records.NEAREST_MAX]
    protocol.answer = None
    assert await protocol.call_find(None, [KEY_ID]) is None


NESTED = b"\xdd\x00\x00\x27\x10" * 13_000
"""Nested arrays of 10,000 items each, with the content missing."""


@pytest.mark.parametrize(
    "data",
    [NESTED, *(msgpack.packb(msgpack.ExtType(code, NESTED)) for code in (0x40, 0x50))],
    ids=["alone", "in a tuple", "in a dictionary"],
)
def test_what_a_value_only_announces_takes_no_memory(data):
    records.harden(
        DHTProtocol.__new__(DHTProtocol), BoundedStorage(), validator(), DhtCallLimiter()
    )
    tracemalloc.start()
    with pytest.raises(msgpack.StackError):
        MSGPackSerializer.loads(data)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < 10 * len(data)


def test_dictionaries_and_tuples_are_read_as_before():
    records.harden(
        DHTProtocol.__new__(DHTProtocol), BoundedStorage(), validator(), DhtCallLimiter()
    )
    dictionary = DictionaryDHTValue()
    dictionary.store("owner", b"value", NOW)
    back = MSGPackSerializer.loads(MSGPackSerializer.dumps([dictionary, ("a", (1, b"b"))]))
    assert back[0].get("owner") == dictionary.get("owner")
    assert back[1] == ("a", (1, b"b"))

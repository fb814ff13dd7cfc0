from collections import Counter
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.core.rng import Rng
from protocol.core.types import MEMBERS_MAX, PeerId, RunId
from protocol.membership.directory_buckets import (
    BITS_MAX,
    MEMBERS_PER_BUCKET,
    BucketReader,
    Buckets,
    bits_for,
)
from tests.worlds.messages import identity

RUN = RunId(b"r" * 32)
BUCKETS = Buckets(RUN)
PEERS = [identity(f"member {n}").peer_id for n in range(2000)]


@given(st.integers(0, MEMBERS_MAX))
def test_there_are_as_few_buckets_as_hold_the_swarm(members):
    bits = bits_for(members)
    assert 0 <= bits <= BITS_MAX
    assert members <= MEMBERS_PER_BUCKET << bits
    assert bits == 0 or members > MEMBERS_PER_BUCKET << bits - 1


@given(st.sampled_from(PEERS), st.integers(0, BITS_MAX))
def test_a_member_is_listed_in_one_bucket_of_each_size(peer, bits):
    listed = [key for key in BUCKETS.keys if BUCKETS.may_list(key, peer)]
    assert BUCKETS.key_of(peer, bits) in listed
    assert len(listed) == BITS_MAX + 1
    places = [int(key.rpartition("/")[2]) for key in listed]
    assert all(longer >> 1 == shorter for shorter, longer in pairwise(places))


def test_members_spread_over_buckets_and_differently_in_every_run():
    bits = bits_for(len(PEERS))
    sizes = Counter(BUCKETS.key_of(peer, bits) for peer in PEERS)
    assert len(sizes) == 1 << bits
    assert max(sizes.values()) < 2 * MEMBERS_PER_BUCKET
    other = Buckets(RunId(b"s" * 32))
    number = slice(-2, None)
    same = sum(BUCKETS.key_of(p, bits)[number] == other.key_of(p, bits)[number] for p in PEERS)
    assert same < 2 * len(PEERS) / (1 << bits)


def listed(peers, bits) -> dict[str, set[PeerId]]:
    """Return the directory entries of the honest members of a swarm of this size."""
    entries: dict[str, set[PeerId]] = {}
    for peer in peers:
        entries.setdefault(BUCKETS.key_of(peer, bits), set()).add(peer)
    return entries


def reads_until(reader, entries, wanted, *, known=1, reads_max=1000) -> int:
    """Return the readings that a node with ``known`` members needs to find ``wanted``."""
    found: set[PeerId] = set()
    for count in range(1, reads_max + 1):
        here = entries.get(reader.next(max(known, len(found))), set())
        if here:
            reader.found()
        found |= here
        if len(found) >= wanted:
            return count
    raise AssertionError(f"found {len(found)} of {wanted} in {reads_max} readings")


@given(st.integers(0, 2**32), st.integers(1, len(PEERS)))
def test_a_new_node_finds_somebody_in_a_swarm_of_any_size_and_then_the_others(seed, size):
    entries = listed(PEERS[:size], bits_for(size))
    reader = BucketReader(BUCKETS, Rng(seed.to_bytes(8, "big")))
    # A bucket with a tenth of the average is empty once in e^9 times.
    assert reads_until(reader, entries, 1) <= 2 * (BITS_MAX + 2)
    assert reads_until(reader, entries, size) <= 1000


@settings(max_examples=20)
@given(st.integers(0, 2**32))
def test_a_bucket_that_lists_nobody_hides_only_its_own_members(seed):
    """Nodes close to a key in the directory can hide its records."""
    bits = bits_for(len(PEERS))
    entries = listed(PEERS, bits)
    poisoned = BUCKETS.key_of(PEERS[0], bits)
    hidden = len(entries.pop(poisoned))
    reader = BucketReader(BUCKETS, Rng(seed.to_bytes(8, "big")))
    assert reads_until(reader, entries, len(PEERS) - hidden) <= 1000


@given(st.integers(0, 2**32), st.integers(0, BITS_MAX), st.sampled_from((-1, 1)))
def test_nodes_that_count_the_swarm_differently_find_each_other(seed, bits, off):
    known = MEMBERS_PER_BUCKET << max(0, min(BITS_MAX, bits + off))
    entries = listed(PEERS[:50], bits)
    reader = BucketReader(BUCKETS, Rng(seed.to_bytes(8, "big")))
    for _ in range(5000):
        here = entries.get(reader.next(known), set())
        if here:
            return
    raise AssertionError("nobody found")

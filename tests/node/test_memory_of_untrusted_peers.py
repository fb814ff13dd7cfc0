"""Memory that untrusted peers can fill: bytes per entry, by the limits, in total.

Each table is filled with its largest entries, in the same way as by the daemon. The table in
docs/security.md is the output of ``python -m tests.node.test_memory_of_untrusted_peers``.
"""

import gc
import sys
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import pytest

from node.network.connections.gater import PEERS_MAX, Bans
from node.network.gossip.config import READ_RATES
from node.network.resources.rate_limiter import KEYS_MAX, RateLimiter
from protocol.core.crypto import verify
from protocol.core.faults import Fault, FaultCode
from protocol.core.rng import Rng
from protocol.core.types import MEMBERS_MAX, PeerId, Role
from protocol.gossipsub.gossip import Promises
from protocol.gossipsub.message_cache import SeenCache
from protocol.gossipsub.params import Params, ScoreParams
from protocol.gossipsub.peer_score import Scores
from protocol.ledger.chain import Lead
from protocol.ledger.reputation import UNTRUSTED_COMMITS_MAX
from protocol.ledger.worker_stats import UNCERTIFIED_MAX
from protocol.messages import ADMISSION_BYTES_MAX, OBSERVATIONS_MAX, Hardware
from protocol.replica.replica import Replica
from tests.worlds.messages import World, identity, run_manifest

MEGABYTE = 1_000_000
TOTAL_MB = 420
"""Bound in docs/security.md for all untrusted peers, without the buffers of streams."""

LONGEST = 200 * "x"
SAMPLE = 300

WORLD = World(run_manifest())
UNTRUSTED = [identity(f"untrusted {number}") for number in range(SAMPLE)]
RNG = Rng(b"memory")


def knowing_the_validators() -> Replica:
    """Return a replica with a verifier that keeps nothing, unlike those of other tests."""
    here = Replica(WORLD.manifest, verify)
    WORLD.refresh(here, 0)
    here.receive(WORLD.genesis().envelope, WORLD.at(0))
    return here


def peer_ids():
    return [PeerId(str(one.peer_id)) for one in UNTRUSTED]


def roster():
    witnessed = tuple(identity(f"witness {n}").public_key for n in range(OBSERVATIONS_MAX))
    largest = {
        "addresses": tuple(f"{number}{LONGEST[1:]}" for number in range(8)),
        "hardware": Hardware(gpu=LONGEST, cores=2),
        "software": LONGEST,
        "witnessed": witnessed,
        "upload_classes": (40,) * OBSERVATIONS_MAX,
        "admission": bytes(ADMISSION_BYTES_MAX),
    }
    envelopes = [WORLD.record(one, [Role.RELAY], **largest).envelope for one in UNTRUSTED]
    here = knowing_the_validators()

    def fill():
        for envelope in envelopes:
            here.receive(bytes(bytearray(envelope)), WORLD.at(0))
        return here

    yield fill
    assert sum(here.roster.get(one.peer_id) is not None for one in UNTRUSTED) == SAMPLE


def commits():
    here = knowing_the_validators()
    # Each of a body of its own, of which nothing else is known.
    envelopes = [WORLD.commit(one, body=RNG.bytes(32)).envelope for one in UNTRUSTED]

    def fill():
        for envelope in envelopes:
            here.receive(bytes(bytearray(envelope)), WORLD.at(0))
        return here

    yield fill
    assert len(here.ledger.commits.unsettled) == SAMPLE


def uncertified():
    """Workers without a certified rollout, each with two commits for one slot."""
    here = knowing_the_validators()
    envelopes = [WORLD.commit(one, tokens=n).envelope for one in UNTRUSTED for n in (10, 11)]
    for _ in range(4 * WORLD.manifest.shardcast.versions_kept + 1):
        here.ledger.offer_checkpoint(
            WORLD.checkpoint(here.ledger.chain.head), WORLD.at(0), Lead(0, b"")
        )

    def fill():
        for envelope in envelopes:
            here.receive(bytes(bytearray(envelope)), WORLD.at(0))
        here.ledger.advance(5 * WORLD.manifest.committee.expire_after_epochs + 1)
        return here

    yield fill
    assert len(here.ledger.commits.kept) == 2 * SAMPLE
    assert len(here.ledger.commits.entries) == 0


def seen():
    cache, ids = SeenCache(600.0, 1 << 17), [RNG.bytes(46) for _ in range(SAMPLE)]

    def fill():
        for one in ids:
            cache.add(bytes(bytearray(one)), 0.0)
        return cache

    yield fill


def promises():
    made, ids = Promises(ScoreParams(), Rng(b"")), [RNG.bytes(46) for _ in range(SAMPLE)]

    def fill():
        for peer, one in zip(peer_ids(), ids, strict=True):
            made.add(peer, [bytes(bytearray(one))], 0.0)
        return made

    yield fill
    assert len(made) == SAMPLE


def retained():
    scores = Scores(ScoreParams())

    def fill():
        for peer in peer_ids():
            scores.connect(peer, 0.0)
            for topic in range(5):
                scores.invalid(peer, f"prime-node/topic/{topic}")
            scores.disconnect(peer, 0.0)
        return scores

    yield fill
    assert scores.retained == SAMPLE


def bans():
    held = Bans()

    def fill():
        for peer in peer_ids():
            for _ in range(2):
                held.blame(peer, Fault(FaultCode.RPC_MALFORMED, "x"), 0.0)
        return held

    yield fill
    assert len(held.faults(0.0)) == SAMPLE


def reading():
    table = RateLimiter("read_accounts", READ_RATES)

    def fill():
        for peer in peer_ids():
            table.charge(peer, 1, 0.0)
        return table

    yield fill
    assert len(table) == SAMPLE


@dataclass(frozen=True)
class Table:
    what: str
    filling: Callable
    limit: int


pytestmark = pytest.mark.xdist_group("memory of untrusted peers")  # one process fills each table


@cache
def bytes_each(table: Table) -> float:
    """Return the bytes of an entry, measured over a sample."""
    filling = table.filling()
    fill = next(filling)
    gc.collect()
    tracemalloc.start()
    try:
        kept = fill()
        gc.collect()
        taken = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert next(filling, None) is None, "the table holds them all"
    del kept
    return taken / SAMPLE


TABLES = [
    Table("records of members", roster, MEMBERS_MAX),
    Table("commits without an outcome", commits, UNTRUSTED_COMMITS_MAX),
    Table("workers with nothing certified", uncertified, UNCERTIFIED_MAX),
    Table("messages seen", seen, Params().seen_max),
    Table("promises", promises, ScoreParams().promises_max),
    Table("scores of disconnected peers", retained, ScoreParams().retained_max),
    Table("faults and bans", bans, 3 * PEERS_MAX),
    Table("read accounts", reading, 2 * KEYS_MAX),
]


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.what.replace(" ", "-"))
def test_an_entry_of_an_untrusted_peer_takes_memory_and_not_much(table):
    assert 50 < bytes_each(table) < 20_000


def test_untrusted_peers_take_no_more_memory_than_is_stated():
    total = sum(bytes_each(table) * table.limit for table in TABLES)
    caches = Params().cache_bytes_max
    assert 0.7 * TOTAL_MB < (total + caches) / MEGABYTE < TOTAL_MB


if __name__ == "__main__":
    for one in TABLES:
        each = bytes_each(one)
        megabytes = each * one.limit / MEGABYTE
        sys.stdout.write(f"| {one.what} | {one.limit:,} | {each:,.0f} | {megabytes:.0f} |\n")

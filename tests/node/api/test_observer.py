import json
from types import SimpleNamespace

import pytest

from node.api.observer import Observer
from node.api.reader import NodeReader
from node.api.status import CircuitsStatus
from node.context import NodeContext
from node.network.blobs.traffic_stats import TrafficStats
from node.network.blobs.transport_choice import BlobTransport
from node.network.blobs.wire import BlobKind
from node.replication.inbox import MessageOrigin
from node.weights.download_progress import DownloadLog, Form, Label
from protocol.core.types import Role, ValidationResult
from protocol.gossipsub.events import RpcReceived
from protocol.gossipsub.rpc import Prune, Rpc, encode_rpc
from protocol.replica.received import Received
from protocol.run.manifest import sign_manifest
from roles.runtime.context import ChangeSignal, Conditions
from tests.protocol.gossipsub.nodes import PEERS, TOPIC, joined_router, received
from tests.worlds.messages import PREDECESSOR, World, identity, run_manifest, succeeding

WORLD = World(run_manifest())
WORKER, OTHER = WORLD.workers[:2]
NOW = WORLD.at(1)
LOOP_NOW = 5000.0


def peers(*connected, unreachable=""):
    return SimpleNamespace(
        connected=list(connected),
        unreachable=unreachable,
        dial_failures=4,
        banned=3,
        sizes=dict,
        places={},
        faults=lambda: {PEERS[2].peer_id: 2},
    )


def reader(peer=OTHER, **changes) -> NodeReader:
    """Return the reader of a healthy node; ``changes`` are its faults."""
    replica = changes.pop("replica", None) or WORLD.replica(roster_at=1)
    counters = SimpleNamespace(received=5, duplicates=2)
    gossip = SimpleNamespace(sizes=dict, counters=counters, report=list)
    gossip.link_counters = SimpleNamespace(bytes_in=1, bytes_out=2, frames_dropped=3)
    exchange = SimpleNamespace(sent=TrafficStats(), received=TrafficStats())
    for tally, kind, way, count in (
        (exchange.sent, BlobKind.BODY, BlobTransport.STREAM, 4),
        (exchange.sent, BlobKind.WEIGHTS, BlobTransport.STREAM, 6),
        (exchange.received, BlobKind.BODY, BlobTransport.STREAM, 5),
        (exchange.received, BlobKind.WEIGHTS, BlobTransport.STREAM, 4),
        (exchange.received, BlobKind.WEIGHTS, BlobTransport.HTTP, 3),
    ):
        tally.note(WORKER.peer_id, kind, way, count, LOOP_NOW)
    ports = SimpleNamespace(clock=SimpleNamespace(now=lambda: NOW))
    conditions = changes.pop("conditions", Conditions())
    fields = {
        "context": NodeContext(peer, replica, ports, None, ChangeSignal(), conditions),
        "roles": (Role.INFERENCE,),
        "peers": peers("somebody"),
        "downloads": DownloadLog(),
        "monotonic": lambda: LOOP_NOW,
        "inbox": SimpleNamespace(other_versions={"somebody": 1, "untrusted": 99}),
        "gossip": gossip,
        "exchange": exchange,
        "circuits": SimpleNamespace(
            addresses=("/through/a/relay",),
            relay=SimpleNamespace(reservations=3, circuits=2, carried_bytes=1000),
        ),
        "policies": SimpleNamespace(
            newest=lambda: SimpleNamespace(version=0),
            newest_version=lambda: 0,
            saved_bytes=8,
            get=lambda version: version or None,
        ),
        "addresses": lambda: ("/here",),
        "anti_entropy": synchronising(),
        "restored": True,
        "p2pd_pid": lambda: 42,
        "manifest": sign_manifest(WORLD.manifest, identity("creator")),
        "task": lambda: None,
        "forest": list,
        "round_trips": dict,
        "started_at": NOW - 5,
    }
    return NodeReader(Observer(**fields | changes))


def take(node, *messages):
    for signed in messages:
        assert (
            node.observer.context.replica.receive(signed.envelope, NOW).result
            is ValidationResult.ACCEPT
        )


def test_a_status_names_the_run_that_this_one_succeeds():
    assert reader().summary().succeeds == ""
    replica = World(succeeding(WORLD.manifest)).replica(roster_at=None)
    run, page = PREDECESSOR.run_id[:16], PREDECESSOR.page[:16]
    found = reader(replica=replica).summary().succeeds
    assert found == f"run {run}… at page {page}… (epoch 90), version 7"


def synchronising(taken=0, asked=0, *, done=True):
    return SimpleNamespace(synchronised=done, progress=(taken, asked))


def nothing_held(**arrival):
    """Node without any policy; ``arrival`` describes the download of the first one."""
    arrivals = DownloadLog()
    if arrival:
        coming = arrivals.begin(Label("version 0", 0), WORKER.peer_id, 2, LOOP_NOW - 10)
        coming.total_bytes, coming.bytes_missing = arrival["total"], arrival["missing"]
        if rate := arrival.get("rate"):
            coming.pieces, coming.here = (1, 1), [1, 0]
            coming.received(WORKER.peer_id, BlobTransport.STREAM, 10 * rate, LOOP_NOW)
    library = {"newest": lambda: None, "newest_version": lambda: -1, "get": lambda _: None}
    return {"policies": SimpleNamespace(**library, saved_bytes=0), "downloads": arrivals}


def full(reason):
    conditions = Conditions()
    conditions.set("disk", reason)
    return conditions


def preparing(what):
    conditions = Conditions()
    conditions.prepare(Role.INFERENCE, what)
    return conditions


def awaited(*waiting):
    conditions = Conditions()
    conditions.set("task", "the run's bundle is not stored")
    conditions.wait("task", *waiting)
    return conditions


STATES = {
    "ready": ({}, ""),
    "draining": ({"draining": True}, ""),
    "starting": ({"restored": False}, "reading stored messages"),
    "joining": ({"peers": peers()}, "looking for peers"),
    "joining ": ({"peers": peers(unreachable="nobody answers")}, "nobody answers"),
    "paused": ({"conditions": full("disk full")}, "disk full"),
    "syncing": ({"anti_entropy": synchronising(done=False)}, "synchronising"),
    "syncing ": (
        {"anti_entropy": synchronising(3, 12, done=False)},
        "synchronising (3 of 12 messages)",
    ),
    "syncing      ": (
        nothing_held() | {"conditions": awaited("fetching the run's bundle, 43 % of 2.0 MB", 0.43)},
        "fetching the run's bundle, 43 % of 2.0 MB",
    ),
    "syncing         ": ({"conditions": preparing("starting the engine")}, "starting the engine"),
    "syncing          ": (
        nothing_held() | {"conditions": preparing("starting the engine")},
        "fetching weights: waiting for the index",
    ),
    "syncing       ": ({"conditions": awaited("listening")}, "listening"),
    "paused ": (
        {"conditions": full("disk full"), "anti_entropy": synchronising(done=False)},
        "disk full",
    ),
    "syncing  ": (nothing_held(), "fetching weights: waiting for the index"),
    "syncing   ": (
        nothing_held(total=1000, missing=570, rate=50),
        "fetching weights 43 %, 1 s left",
    ),
    "syncing    ": (
        nothing_held(total=1000, missing=570),
        "fetching weights 43 %, stalled",
    ),
}


@pytest.mark.parametrize("state", STATES)
def test_a_state_and_its_reason(state):
    changes, reason = STATES[state]
    status = reader(**changes).status()
    assert (status.state, status.reason) == (state.strip(), reason)
    shares = {"(3 of 12": 3 / 12, "43 %": 0.43}
    known = [share for words, share in shares.items() if words in reason]
    assert status.share == (pytest.approx(known[0]) if known else None)


def test_a_slashed_worker_says_so():
    node = reader(WORKER)
    commit = WORLD.commit(WORKER)
    take(node, commit, WORLD.certificate(commit, accepted=False, escalated=True))
    status = node.status()
    assert status.state == "paused"
    assert "prime-node why" in status.reason
    assert {member.reputation for member in status.members} == {"genesis"}
    why = node.why()
    assert why.slashed
    (rollout,) = why.rollouts
    assert rollout.row.commit == commit.digest.hex()
    assert rollout.row.reason == "computation"
    assert len(rollout.verdicts) == WORLD.committee(commit).quorum
    assert rollout.certificate


def test_a_rollout_that_nobody_decided_on_is_explained():
    node = reader(WORKER)
    take(node, WORLD.commit(WORKER))
    assert node.why().rollouts == ()
    node.observer.context.replica.advance(WORLD.at(20))
    (rollout,) = node.why().rollouts
    reason = "no page drew its committee in time"
    assert (rollout.row.state, rollout.row.reason) == ("expired", reason)
    assert rollout.verdicts == ()


def test_the_numbers_are_those_of_the_ledger():
    node = reader(WORKER)
    certified, opened = WORLD.chain(WORKER, 2)
    take(node, certified, opened, WORLD.certificate(certified), WORLD.commit(OTHER))
    take(node, WORLD.checkpoint(WORLD.genesis(), batch=(certified.digest,), reward_mean=250_000))
    status = node.status()
    assert status.rollouts.committed == 3
    assert (status.yours.certified, status.yours.waiting) == (0, 2), "no final page names one"
    assert status.rollouts.trained == 1
    assert list(status.workers) == sorted((WORKER.peer_id, OTHER.peer_id))
    assert [point.reward_mean for point in status.checkpoints] == [0.0, 0.25]
    assert status.checkpoints[1].commits == 1
    assert status.policy_version_newest == 1
    assert status.addresses == ("/here",)
    assert status.epoch == 1
    assert status.peers_banned == 3
    assert (status.traffic.weights_received, status.traffic.blobs_received) == (7, 12)
    assert status.traffic.weights_saved == 8
    assert (status.traffic.weights_sent_http, status.traffic.weights_received_http) == (0, 3)
    snapshot = node.observer.snapshot()
    assert (snapshot.committed, snapshot.certified, snapshot.version) == (3, 1, 1)
    assert snapshot.members == len(status.members) == 6


def test_what_is_on_its_way_and_who_is_fed_is_told():
    arrivals = DownloadLog()
    arrivals.begin(Label("version 3", 3, Form.PATCH, 9), OTHER.peer_id, 2, LOOP_NOW - 4)
    done = arrivals.begin(Label("version 2", 2), OTHER.peer_id, 2, LOOP_NOW - 9)
    arrivals.complete(done, LOOP_NOW - 6)
    arrivals.end(done)
    node = reader(downloads=arrivals)
    coming, came = node.status().arrivals
    assert (coming.name, coming.seconds, coming.root) == ("version 3", 4.0, OTHER.peer_id)
    assert (came.version, came.seconds, came.arrived_at) == (2, 3.0, NOW - 6)
    assert node.status().durations["file"].seconds == 3.0
    (receiver,) = node.status().receivers
    assert (receiver.name, receiver.stream_bytes, receiver.bytes_per_second) == (
        WORKER.peer_id,
        10,
        10,
    )
    node.observer.monotonic = lambda: LOOP_NOW + 60
    assert node.status().receivers == ()


def test_those_that_gossip_are_told_with_what_their_scores_are_made_of():
    router = joined_router(3)
    quiet, waiting, liar = (each.peer_id for each in PEERS[:3])
    router.handle(received(waiting, Rpc(prune=(Prune(TOPIC, 60),))), 10)
    router.handle(RpcReceived(liar, encode_rpc(Rpc(publish=(b"junk",)))), 10)
    node = reader()
    node.observer.gossip.report = lambda: router.report(12)
    status = node.status()
    assert [each.peer_id for each in status.gossip_peers] == [quiet, waiting, liar]
    good, pruned, junk = status.gossip_peers
    assert (good.score, good.level, good.mesh) == (0, "good", ("commits",))
    assert good.backoff_seconds == {}
    assert (pruned.mesh, pruned.backoff_seconds) == ((), {"commits": 58.0})
    assert (junk.breaches, junk.faults, pruned.faults) == (1.0, 2, 0)
    assert json.loads(json.dumps(status.peers_json()))["gossip_peers"][1]["level"] == "good"


def test_a_member_is_never_younger_than_now_and_shows_its_scoring_runtime():
    node, ahead = reader(), round((NOW + 2) * 1000)
    take(node, WORLD.record(WORLD.workers[2], ("relay",), sequence=ahead, scoring=b"\x07" * 32))
    shown = {member.peer_id: member for member in node.status().members}
    member = shown.pop(WORLD.workers[2].peer_id)
    assert (member.age_seconds, member.scoring) == (0.0, "07" * 32)
    assert {one.scoring for one in shown.values()} == {""}


def test_a_version_shows_how_much_of_what_it_learned_from_was_rejected():
    node = reader()
    good, bad = WORLD.commit(WORKER, tokens=9), WORLD.commit(OTHER, tokens=9)
    rejection = WORLD.certificate(bad, accepted=False, escalated=True)
    take(node, good, bad, WORLD.certificate(good), WORLD.certificate(bad))
    honest = WORLD.checkpoint(WORLD.genesis(), batch=(good.digest,))
    take(node, honest, WORLD.checkpoint(honest, batch=(bad.digest,)), rejection)
    (learned,) = node.why().trained_on_rejected
    assert (learned.version, learned.trainer) == (2, honest.signer)
    assert learned.commits == (bad.digest.hex(),)
    points = node.status().checkpoints
    assert [point.trained_without_certificate for point in points] == [0, 0, 1]


def test_the_first_certificate_is_dated_once():
    node = reader()
    commit = WORLD.commit(WORKER)
    take(node, commit)
    assert node.status().first_certificate_at is None
    assert node.why().trained_on_rejected == ()
    certificate = WORLD.certificate(commit)
    node.observer.note(Received(ValidationResult.IGNORE, certificate), MessageOrigin.GOSSIP)
    assert node.status().first_certificate_at is None
    node.observer.note(Received(ValidationResult.ACCEPT, certificate), MessageOrigin.WAITED)
    assert node.status().first_certificate_at == NOW
    node.observer.context.ports.clock.now = lambda: NOW + 1
    node.observer.note(Received(ValidationResult.ACCEPT, certificate), MessageOrigin.GOSSIP)
    assert node.status().first_certificate_at == NOW


@pytest.mark.parametrize(
    ("versions", "reason"),
    [
        ({"a": 1, "b": 2}, ""),
        ({"a": 3}, "1 peer runs protocol version 3, this node 2: upgrade prime-node"),
        ({"a": 3, "b": 3}, "2 peers run protocol version 3, this node 2: upgrade prime-node"),
        ({"untrusted": 9}, ""),
    ],
)
def test_a_node_says_when_its_peers_speak_a_newer_protocol(versions, reason):
    inbox = SimpleNamespace(other_versions=versions)
    status = reader(peers=peers("a", "b"), inbox=inbox).status()
    assert (status.state, status.reason) == ("ready", reason)


def test_relays_and_nodes_behind_them_report_circuits():
    node = reader()
    assert node.status().circuits == CircuitsStatus(1, 3, 2, 1000)
    node.observer.circuits.relay = None
    assert node.status().circuits == CircuitsStatus(1)


def test_a_status_stays_small_however_large_the_swarm(monkeypatch):
    """Lists are bounded, counts are not."""
    monkeypatch.setattr("node.api.reader.LISTED_MAX", 3)
    node = reader(WORKER)
    for worker in WORLD.workers:
        take(node, WORLD.commit(worker))
    status = node.status()
    live = node.observer.context.replica.roster.live(NOW)
    assert status.members_count == len(live) > 3
    assert sum(status.members_by_role.values()) >= len(live)
    assert len(status.members) == 3
    named = node.observer.context.replica.manifest.is_of_genesis
    assert all(named(one.peer_id) or one.peer_id == WORKER.peer_id for one in status.members)
    assert WORKER.peer_id in status.workers
    assert len(status.workers) <= 3
    assert status.dial_failures == 4

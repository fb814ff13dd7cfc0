"""API answers of a node, from a replica with real messages."""

from dataclasses import fields
from types import SimpleNamespace

import pytest

from node.api.status import LoopStatus
from node.api.v1.answers import NodeSummary
from node.api.v1.machine import MachineReader
from node.api.v1.node_source import NodeSource
from node.api.v1.queries import EventQuery, PeerQuery, RolloutQuery, WeightsQuery
from node.api.v1.recording import Recording, read_recording, record, write_recording
from node.api.v1.rollouts import NO_BODY, NO_TASK
from node.api.v1.training import seconds_to_go
from node.local.datadir import open_data_dir
from node.local.errors import NodeError
from node.local.log_tail import LogTail
from node.replication.inbox import MessageOrigin
from node.storage.blobs import FileBlobs
from protocol.consensus.member import Contents
from protocol.consensus.trusted_page import TrustedPage
from protocol.core.crypto import digest, public_key_from_peer_id
from protocol.core.types import ValidationResult
from protocol.membership.measured_capacity import forest_members
from protocol.rollout.body import RolloutSequence, encode_body
from roles.environments.characters import Arithmetic
from roles.environments.threaded import InBackground
from roles.ports.storage import Owner, Purpose
from simulations.runtime.loop import SimBackground
from tests.node.api.test_observer import NOW, WORKER, WORLD, reader
from tests.node.api.v1.test_contributors import accounts_of, count, receipt, worked
from tests.worlds.page_book import PageBook

OTHER = WORLD.workers[1]
SEQUENCES = [
    RolloutSequence((5, 1), (-0.1, -0.2), 1_000_000 if number == 2 else 0, (b"proof",))
    for number in range(4)
]
BODY = encode_body(SEQUENCES)
TASK = InBackground(Arithmetic(), SimBackground())


class Node:
    """Source over a replica, and its inputs."""

    def __init__(self, tmp_path, task=TASK):
        self.clock = SimpleNamespace(now=lambda: NOW)
        self.listeners = []
        inbox = SimpleNamespace(other_versions={}, listen=self.listeners.append)
        self.reader = reader(
            WORKER,
            inbox=inbox,
            task=lambda: task,
            forest=self.forest,
            round_trips=lambda: {OTHER.peer_id: 0.25},
        )
        self.observer = self.reader.observer
        self.blobs = self.observer.context.ports.blobs = FileBlobs(tmp_path / "blobs", None)
        self.replica = self.observer.context.replica
        machine = MachineReader(open_data_dir(tmp_path / "data"), LogTail(), LoopStatus)
        self.source = NodeSource(self.reader.summary, self.clock, "boot", machine)
        self.source.join(self.reader)

    def forest(self):
        live = self.replica.roster.live(NOW)
        return forest_members(live, WORLD.manifest, lambda _: True, lambda _: True)

    def hear(self, *messages):
        for signed in messages:
            received = self.replica.receive(signed.envelope, NOW)
            assert received.result is ValidationResult.ACCEPT
            for listener in self.listeners:
                listener(received, MessageOrigin.GOSSIP)

    def kinds(self):
        return [one.kind for one in self.source.events(EventQuery()).rows]


@pytest.fixture
def node(tmp_path):
    return Node(tmp_path)


def commit_with_body(signer=WORKER, **changes):
    body = {"body": digest(BODY), "body_bytes": len(BODY), "tokens": 8}
    return WORLD.commit(signer, **body | changes)


async def test_before_it_joins_there_is_the_status_alone(tmp_path):
    status = reader(WORKER).summary()
    source = NodeSource(lambda: status, SimpleNamespace(now=lambda: NOW), "boot")
    source.look()
    assert (source.overview().state, source.overview().now) == (status.state, NOW)
    assert (await source.rollouts(RolloutQuery())).rows == ()
    assert await source.rollout("00" * 32) is None
    assert source.peers(PeerQuery()).rows == source.weights(WeightsQuery()).versions == ()
    assert source.council().members == () and source.council().text == ""
    assert source.run().run_id == "" and (await source.machine()).log == ()


async def test_a_rollout_is_told_with_its_text_its_way_and_its_verdicts(node):
    commit = commit_with_body()
    node.hear(commit)
    owner = Owner(Purpose.ROLLOUT_BODY, commit.digest)
    assert await node.blobs.put(BODY, owner) == commit.message.body
    node.hear(WORLD.certificate(commit))
    shown = await node.source.rollout(commit.digest.hex())
    assert (shown.row.state, shown.row.accepts, shown.row.reward) == ("certified", 3, 0.25)
    assert [one.completion for one in shown.sequences] == ["3<end>"] * 4
    assert all("=" in one.prompt for one in shown.sequences)
    assert [one.reward for one in shown.sequences] == [0, 0, 1, 0]
    assert [one.group for one in shown.sequences] == [0, 0, 1, 1]
    drawn = WORLD.committee(commit)
    assert shown.committee.first == drawn.first and shown.committee.epoch == 2
    assert [one.validator for one in shown.verdicts] == list(drawn.first)
    assert [one.place for one in shown.verdicts] == [0, 1, 2]
    (row,) = (await node.source.rollouts(RolloutQuery())).rows
    assert row == shown.row


async def test_what_is_missing_is_said(tmp_path, node):
    commit = commit_with_body()
    node.hear(commit)
    shown = await node.source.rollout(commit.digest.hex())
    assert (shown.sequences, shown.note) == ((), NO_BODY)
    relay = Node(tmp_path / "relay", task=None)
    relay.hear(commit)
    await relay.blobs.put(BODY, Owner(Purpose.ROLLOUT_BODY, commit.digest))
    assert (await relay.source.rollout(commit.digest.hex())).note == NO_TASK
    for nothing in ("", "zz", "ab", "00" * 32, "../../etc/passwd"):
        assert await node.source.rollout(nothing) is None


async def test_a_body_of_another_length_than_promised_is_not_read(node, monkeypatch):
    commit = commit_with_body(body_bytes=len(BODY) - 1)
    node.hear(commit)
    await node.blobs.put(BODY, Owner(Purpose.ROLLOUT_BODY, commit.digest))
    monkeypatch.setattr(node.blobs, "get", None)
    assert (await node.source.rollout(commit.digest.hex())).note == NO_BODY


async def test_rollouts_come_page_by_page_the_newest_first(node):
    commits = WORLD.chain(WORKER, 5)
    rejected = WORLD.commit(OTHER)
    node.hear(*commits, rejected, WORLD.certificate(rejected, accepted=False, escalated=True))
    first = await node.source.rollouts(RolloutQuery(limit=4))
    assert [row.slot for row in first.rows] == [0, 4, 3, 2]
    assert (first.total, first.older, first.reasons) == (6, first.rows[-1].commit, ("computation",))
    rest = await node.source.rollouts(RolloutQuery(limit=4, after=first.older))
    assert ([row.slot for row in rest.rows], rest.older) == ([1, 0], "")
    bad = await node.source.rollouts(RolloutQuery(state="rejected"))
    assert [(row.worker, row.rejects) for row in bad.rows] == [(OTHER.peer_id, 3)]


def test_what_happens_is_told_once_with_its_evidence(node):
    commit = WORLD.commit(WORKER)
    certificate = WORLD.certificate(commit, accepted=False, escalated=True)
    node.hear(commit, certificate)
    assert sorted(node.kinds()) == ["escalated", "slashed"]
    told = {one.kind: one for one in node.source.events(EventQuery()).rows}
    assert told["slashed"].subject == WORKER.peer_id
    assert told["slashed"].evidence == (certificate.digest.hex(),)
    assert told["slashed"].rollout == commit.digest.hex()
    node.source.look()  # finds all of it in the replica again
    assert sorted(node.kinds()) == ["escalated", "leader", "slashed"]
    assert node.source.overview().slashed == 1


async def test_names_stand_beside_keys_on_every_page(node):
    trainer, validator = WORLD.trainers[0], WORLD.validators[0]
    named = {WORKER: "Éva", OTHER: "", trainer: "Lead", validator: "<b>"}
    for signer, name in named.items():
        role = "trainer" if signer is trainer else "inference"
        node.hear(WORLD.record(signer, (role,), 1.29, name=name))
    commit = WORLD.commit(WORKER)
    node.hear(commit, WORLD.certificate(commit, accepted=False, escalated=True))
    node.source.look()
    rows = {row.peer_id: row.name for row in node.source.peers(PeerQuery()).rows}
    assert {peer: name for peer, name in rows.items() if name} == {
        signer.peer_id: name for signer, name in named.items() if name
    }
    assert [row.peer_id for row in node.source.peers(PeerQuery(text="éva")).rows] == [
        WORKER.peer_id
    ]
    summary = node.reader.summary()
    assert (summary.name, summary.council.leader_name) == ("Éva", "Lead")
    council = {row.peer_id: row.name for row in node.source.council().members}
    assert council[validator.peer_id] == "<b>"
    shown = await node.source.rollout(commit.digest.hex())
    assert shown.row.name == "Éva"
    by = {one.validator: one.name for one in shown.verdicts}
    assert by == {peer: "<b>" if peer == validator.peer_id else "" for peer in by}
    told = {one.kind: one.name for one in node.source.events(EventQuery()).rows}
    assert told == {"escalated": "Éva", "slashed": "Éva", "leader": "Lead"}


def test_a_fork_and_a_validator_that_contradicts_itself_are_told(node):
    about = WORLD.commit(OTHER)
    node.hear(WORLD.commit(WORKER), WORLD.commit(WORKER, tokens=9), about)
    node.hear(WORLD.evidence(WORLD.validators[2], about))
    told = {one.kind: one for one in node.source.events(EventQuery()).rows}
    assert told["fork"].subject == WORKER.peer_id and len(told["fork"].evidence) == 2
    assert told["excluded"].subject == WORLD.validators[2].peer_id


def test_a_slash_of_a_final_page_is_told_without_the_messages_that_prove_it(node):
    node.hear(WORLD.record(OTHER, ("inference",), 1, name="Éva"))
    node.source.look()
    accounts = worked(accounts_of(node.reader))
    later = NOW + WORLD.manifest.epochs.seconds
    node.observer.context.ports.clock.now = lambda: later
    node.source.look()
    node.source.look()
    (told,) = node.source.events(EventQuery(kind="slashed")).rows
    epoch = accounts.account(OTHER.peer_id).slashed
    assert (told.subject, told.name) == (OTHER.peer_id, "Éva")
    assert told.text == f"slashed by the final page of epoch {epoch}"
    assert told.at == WORLD.manifest.epoch_start(epoch)


def test_a_slash_that_messages_prove_too_is_told_once(node):
    commit = WORLD.commit(OTHER)
    node.hear(commit, WORLD.certificate(commit, accepted=False, escalated=True))
    node.hear(WORLD.commit(WORKER), WORLD.commit(WORKER, tokens=9))
    accounts = worked(accounts_of(node.reader))
    lies = [receipt(one, reason="computation") for one in (OTHER, WORKER)]
    count(accounts, accounts.header.epoch + 1, *lies)
    node.source.look()
    rows = node.source.events(EventQuery()).rows
    told = [one for one in rows if one.subject in (OTHER.peer_id, WORKER.peer_id)]
    assert sorted(one.kind for one in told) == ["escalated", "fork", "slashed"]
    assert [one.rollout for one in told if one.kind == "slashed"] == [commit.digest.hex()]


def test_an_unremarkable_certificate_is_no_event(node):
    commit = WORLD.commit(WORKER)
    node.hear(commit, WORLD.certificate(commit))
    assert node.kinds() == []


def test_a_pause_is_told_when_it_begins(node):
    node.source.look()
    node.observer.context.conditions.set("disk", "disk full")
    node.source.look()
    node.source.look()
    rows = [one for one in node.source.events(EventQuery()).rows if one.kind == "paused"]
    assert [one.text for one in rows] == ["this node is paused: disk full"]


def test_the_overview_is_the_summary_of_the_status_and_the_latest_events(node):
    (certified,) = WORLD.chain(WORKER, 1)
    node.hear(certified, WORLD.certificate(certified))
    node.source.look()
    node.hear(WORLD.checkpoint(WORLD.genesis(), batch=(certified.digest,), reward_mean=250_000))
    seen, status = node.source.overview(), node.reader.status()
    summary = {one.name for one in fields(NodeSummary)}
    assert {name: getattr(seen, name) for name in summary} == {
        name: getattr(status, name) for name in summary
    }
    assert [(point.version, point.reward) for point in seen.rewards] == [(1, 0.25)]
    assert (seen.steps_total, seen.members_by_role["validator"], seen.leader) == (
        50,
        6,
        WORLD.trainers[0].peer_id,
    )
    assert [one.kind for one in seen.happened] == ["leader"]


def test_peers_are_told_with_what_was_measured(node):
    node.hear(WORLD.record(OTHER, ("inference",), 1))
    commit = WORLD.commit(OTHER)
    node.hear(commit, WORLD.certificate(commit, accepted=False, escalated=True))
    page = node.source.peers(PeerQuery(role="inference"))
    (row,) = page.rows
    assert (row.peer_id, row.reputation, row.rejected) == (OTHER.peer_id, "slashed", 1)
    assert (row.round_trip_seconds, page.roles) == (0.25, {"validator": 6, "inference": 1})
    assert [row.reputation for row in node.source.peers(PeerQuery(text=OTHER.peer_id)).rows] == [
        "slashed"
    ]
    everybody = node.source.peers(PeerQuery(limit=3, offset=6))
    assert (len(everybody.rows), everybody.total) == (2, 8)  # one is connected and no member
    assert node.source.peers(PeerQuery(reputation="genesis")).total == 6


def test_the_forest_of_a_version_has_everybody_once_in_each_tree(node):
    page = node.source.weights(WeightsQuery())
    forest = page.forest
    assert (forest.version, forest.root) == (0, WORLD.trainers[0].peer_id)
    assert len(forest.members) == 7 and len(forest.parents) == WORLD.manifest.shardcast.stripes
    for parents in forest.parents:
        assert [forest.members[at] for at, one in enumerate(parents) if one == -2] == [forest.root]
        assert parents.count(-1) >= 1
    note = node.source.weights(WeightsQuery(version=9)).note
    assert note == "Version 9 is not known to this node."


async def test_the_machine_and_the_run_are_told(node):
    page = await node.source.machine()
    assert page.pid > 0 and {one.name for one in page.disk} >= {"blobs", "file system"}
    run = node.source.run()
    assert run.run_id == WORLD.run_id.hex() and f"--run-id {run.run_id}" in run.join_command
    assert dict(run.words)["training"].startswith("50 versions, each from 2 rollouts")


def test_the_join_command_names_the_page_that_seated_the_council(node):
    assert "--page" not in node.source.run().join_command, "the run id names the first council"
    leaves = public_key_from_peer_id(WORLD.validators[0].peer_id)
    book = PageBook(WORLD.manifest, WORLD.validators, {26: Contents(removed=(leaves,))})
    book.show(node.replica, 33)
    page = TrustedPage(26, book.page(26).digest)
    assert node.source.run().join_command.endswith(f" --page {page}")


async def test_what_is_recorded_answers_as_the_node_did(tmp_path, node):
    commit = commit_with_body()
    node.hear(commit, WORLD.certificate(commit), *WORLD.chain(OTHER, 3))
    node.source.look()
    write_recording(tmp_path, await record(node.source, "recorded"))
    recording = Recording(read_recording(tmp_path))
    assert recording.overview() == node.source.overview()
    for query in (RolloutQuery(), RolloutQuery(state="certified"), RolloutQuery(limit=2)):
        ours, theirs = await recording.rollouts(query), await node.source.rollouts(query)
        assert (ours.rows, ours.total, ours.older) == (theirs.rows, theirs.total, theirs.older)
    digest_ = commit.digest.hex()
    assert await recording.rollout(digest_) == await node.source.rollout(digest_)
    for query in (PeerQuery(), PeerQuery(role="validator", offset=2, limit=3)):
        assert recording.peers(query) == node.source.peers(query)
    assert recording.council() == node.source.council()
    assert len(recording.council().members) == 6
    assert recording.run() == node.source.run()
    assert recording.events(EventQuery()) == node.source.events(EventQuery())
    assert recording.meta().mode == "recorded"


def test_a_directory_without_a_recording_says_how_to_make_one(tmp_path):
    with pytest.raises(NodeError, match="simulate run"):
        read_recording(tmp_path)
    (tmp_path / "view.json").write_text('{"title": 1}')
    with pytest.raises(NodeError, match="damaged"):
        read_recording(tmp_path)


def entry(version, at):
    message = SimpleNamespace(version=version, created_at=round(at * 1000))
    return SimpleNamespace(manifest=SimpleNamespace(message=message))


def test_the_time_to_go_is_at_the_pace_of_the_last_versions():
    slow = [entry(version, 100 * version) for version in range(5)]
    fast = [entry(4 + number, 400 + 2 * number) for number in range(1, 11)]
    assert seconds_to_go([*slow, *fast], 24, 420.0) == 20.0
    assert seconds_to_go([*slow, *fast], 24, 421.0) == 19.0
    assert seconds_to_go([*slow, *fast], 24, 9999.0) == 18.0
    assert seconds_to_go([*slow, *fast], 14, 421.0) == 0.0
    assert seconds_to_go(slow[:2], 24, 421.0) is None

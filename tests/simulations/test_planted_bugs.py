"""A check of the daemon that does not check: the simulation must see it, and see nothing else."""

import asyncio
import time
from dataclasses import replace

import pytest

from protocol.committee import Outcome, Tally
from protocol.gossip.mesh import Mesh
from protocol.ledger import CommitState, Ledger
from simulations.content import Extent, joined
from simulations.storage import Arrival
from simulations.study import Plan, run_plan

SMALL = """
name = "planted"
description = "Ten nodes that soon have something to learn from."
minutes = 1.25
[nodes]
relay = 1
trainer = 1
validator = 3
inference = 5
start_seconds = 4
[protocol.grpo]
rollouts_per_step = 2
"""

CROWDED = """
name = "crowded"
description = "As many nodes as make meshes full, most of which then go."
minutes = 0.9
[nodes]
relay = 2
trainer = 1
validator = 4
inference = 11
start_seconds = 4
"""


@pytest.fixture
def violation(tmp_path):
    """Run a scenario and return the violation that ended it, if one did."""

    def run(text, *actors, **twists):
        file = tmp_path / "scenario.toml"
        file.write_text(text)
        plan = Plan(str(file), seed=1)
        outcome = run_plan(plan, clock=time.perf_counter, actors=actors, twists=twists)
        assert outcome.result.events > 300  # it lived
        return outcome.violation

    return run


# Certificates


def test_a_trainer_that_does_not_wait_for_certificates_is_seen(monkeypatch, violation):
    def usable(ledger):
        return [
            entry
            for entry in ledger.entries.values()
            if entry.state in (CommitState.COMMITTED, CommitState.CERTIFIED)
            and entry.trained_in is None
            and entry.commit.message.version >= ledger.version - 2
        ]

    assert violation(SMALL) is None
    monkeypatch.setattr(Ledger, "usable", usable)
    seen = violation(SMALL)
    assert seen.rule == "certified-only"
    assert seen.node == "trainer-0"
    assert any("stored rollout-commit" in line for line in seen.causes)


def test_a_committee_that_nobody_counts_is_seen(monkeypatch, violation):
    def outcome(tally, committee):
        heard = [tally.verdicts[peer] for peer in committee.first if peer in tally.verdicts]
        accepting = tuple(verdict for verdict in heard[:1] if verdict.message.accept)
        return Outcome(accepted=True, escalated=False, verdicts=accepting) if accepting else None

    monkeypatch.setattr(Tally, "outcome", outcome)
    monkeypatch.setattr("protocol.replica.check_certificate", lambda *_: None)
    seen = violation(SMALL)
    assert seen.rule == "certified-only"
    assert "2 are needed" in seen.what


# Digests


class OtherBytes:
    """Blobs that serve, of whatever they have, bytes of something else."""

    def __init__(self, honest):
        self._honest = honest

    def __getattr__(self, name):
        return getattr(self._honest, name)

    async def stream(self, digest, offset, length):
        async for piece in self._honest.stream(digest, offset, length):
            bad = isinstance(piece, Extent)
            yield Extent.of(b"other" + piece.seed, piece.start, len(piece)) if bad else piece


def bad_bytes(_machine, parts, _rng):
    return replace(parts, ports=replace(parts.ports, blobs=OtherBytes(parts.ports.blobs)))


async def bad_relays(world):
    for _ in range(2):
        world.start(world.add("relay", behaviour="bad-bytes"))


def test_a_transfer_that_does_not_check_digests_is_seen(monkeypatch, violation):
    twists = {"bad-bytes": bad_bytes}
    assert violation(SMALL, bad_relays, **twists) is None

    def finish(arrival):
        arrival.on_complete(arrival, joined(arrival._here))

    monkeypatch.setattr(Arrival, "fits", lambda *_: True)
    monkeypatch.setattr(Arrival, "_finish", finish)
    seen = violation(SMALL, bad_relays, **twists)
    assert seen.rule == "right-weights"
    assert seen.node != "relay-0"


# Back-off


async def most_go(world):
    await asyncio.sleep(20)
    for name in world.running[5:15]:
        world.crash(name)


def test_a_router_that_forgets_who_pruned_it_is_seen(monkeypatch, violation):
    assert violation(CROWDED, most_go) is None
    monkeypatch.setattr(Mesh, "_back_off", lambda *_: None)
    seen = violation(CROWDED, most_go)
    assert seen.rule == "back-off"
    assert "asked for 60 s" in seen.what

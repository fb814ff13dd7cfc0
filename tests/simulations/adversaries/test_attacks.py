"""Attacks of the catalogue: each reaches its victims at its time, and the swarm tolerates it.

A small swarm with six untrusted peers that attack from 18 to 36 s, or to 45 s. Their effect on
honest nodes is counted at the router, the stream slots and the ledger.
"""

import time
from collections import Counter
from dataclasses import replace
from functools import lru_cache

import pytest

from node.local.addresses import host_of
from node.network.connections import gater
from node.network.connections.dial_policy import SILENT_DIALS_MAX
from node.network.resources.rate_limiter import Rate, RateLimiter
from node.network.resources.stream_slots import StreamSlots
from node.replication.anti_entropy import AntiEntropy
from protocol.core.faults import Fault
from protocol.core.types import Role
from protocol.gossipsub.events import RpcReceived
from protocol.gossipsub.message import decode_message
from protocol.gossipsub.router import Router
from protocol.gossipsub.rpc import Rpc, decode_rpc
from roles.validator.flow import UNTRUSTED_CHECKS, ValidatorFlow
from simulations.adversaries.records import UPLOAD_BYTES_PER_SECOND
from simulations.adversaries.rpcs import EMPTY_FIELDS, IDS, RPC_FLOODS
from simulations.adversaries.streams import STREAMS_AT_ONCE
from simulations.runtime.cores import FIELD_SECONDS, OPEN_SECONDS
from simulations.runtime.loop import START
from simulations.scenario.scenario import load_scenario, scenario_names
from simulations.study.study import RunPlan, run_plan

SWARM = """
name = "attacked"
description = "Few nodes, quick rollouts, and untrusted peers."
minutes = {minutes}
signatures = "{signatures}"
[nodes]
relay = 1
trainer = 1
validator = 3
inference = 5
start_seconds = 4
[[compute]]
name = "any"
share = 1
roles = ["inference", "validator", "trainer"]
generate_tokens_per_second = 40
check_tokens_per_second = 400
train_tokens_per_second = 200
[protocol.grpo]
rollouts_per_step = 2
[[adversaries]]
role = "{role}"
behaviour = "{behaviour}"
per_node = 0.6
from_minute = {begins}
until_minute = {ends}
[[faults]]
kind = "crash"
minute = 0.35
nodes = {{ names = ["worker-0"] }}
lose_state = true
return_after_seconds = 3
"""
USUAL = {"role": "relay", "begins": 0.3, "ends": 0.6, "minutes": 0.85, "signatures": "keyed"}
LONGER = {"ends": 0.75, "minutes": 1.1}
OTHERS = {
    "withheld-body": {"role": "inference", **LONGER},
    "slow-streams": LONGER,
    "cold-boot": {"begins": 0},
    "sybil-flood": {"signatures": "ed25519"},
    "address-reflection": {"signatures": "ed25519"},
}
FROM, UNTIL, LONGER_UNTIL = 18.0, 36.0, 45.0
UNTRUSTED = 6
LATE = 1.0
"""Seconds after the end in which messages in flight still arrive."""


decoded = lru_cache(maxsize=None)(decode_rpc)  # a flood mostly repeats itself


class Seen:
    """Events that honest nodes received from untrusted peers in one run, with times."""

    def __init__(self):
        self.rpcs = []
        self.places = []
        self.worth = Counter()
        self.pages = []
        self.checks = 0
        self.world = None
        self.outcome = None
        self.connections = {}
        self.records = {}

    def untrusted(self):
        return {item.signer.peer_id for item in self.world.machines.values() if item.untrusted_peer}

    def honest(self):
        return [item for item in self.world.machines.values() if not item.untrusted_peer]

    def count(self, what):
        """Sum ``what`` over all RPCs of untrusted peers to honest nodes."""
        found = ((decoded(data), data) for _, _, _, data in self.rpcs)
        return sum(what(rpc, data) for rpc, data in found if isinstance(rpc, Rpc))


LONG = {"ihave-flood", "iwant-flood"}
"""Floods that tests/protocol/gossipsub/test_floods.py sends to one router, too."""


def each(behaviours):
    """Return parameters of tests that one process runs, so that it plays each run once."""
    marks = {name: [together(name)] for name in behaviours}
    for name in LONG.intersection(behaviours):
        marks[name].append(pytest.mark.long)
    return [pytest.param(name, marks=found) for name, found in marks.items()]


def together(behaviour):
    """Return the mark that groups the tests of one behaviour, and those compared with it."""
    is_compared = behaviour in {"false-sync", "slow-rpc", "stream-flood"}
    return pytest.mark.xdist_group("attacks compared" if is_compared else f"attack {behaviour}")


@pytest.fixture(scope="module")
def play(tmp_path_factory):
    """Run a swarm with untrusted peers of one behaviour and return its events; each runs once."""
    played = {}
    file = tmp_path_factory.mktemp("attacked") / "scenario.toml"

    def play(behaviour):
        if behaviour not in played:
            file.write_text(
                SWARM.format(**{**USUAL, **OTHERS.get(behaviour, {})}, behaviour=behaviour)
            )
            with pytest.MonkeyPatch.context() as patch:
                played[behaviour] = run(RunPlan(str(file), seed=2), patch)
        seen = played[behaviour]
        assert seen.outcome.violation is None, str(seen.outcome.violation)
        return seen

    return play


def run(plan, patch):
    seen = Seen()
    # Streams of six are no load for ten nodes.
    rates = gater.OPEN_RATES
    shared = Rate(rates.shared.per_second / 10, rates.shared.burst / 10)
    patch.setattr(gater, "OPEN_RATES", replace(rates, shared=shared))

    async def look(world):
        seen.world = world
        await world.wait_until(FROM + 15)
        hosts = ((item.name, item.host) for item in world.machines.values())
        seen.connections = {name: list(host.connections) for name, host in hosts}
        seen.records = {
            item.name: {peer: item.daemon.replica.roster.get(peer) for peer in seen.untrusted()}
            for item in seen.honest()
            if item.daemon is not None
        }
        await world.wait_until(world.scenario.seconds - 0.1)
        seen.daemons = {item.name: item.daemon for item in world.machines.values()}
        seen.status = {name: daemon.status() for name, daemon in seen.daemons.items()}

    watch_routers(seen, patch)
    watch_places(seen, patch)
    watch_worth(seen, patch)
    watch_pages(seen, patch)
    watch_checks(seen, patch)
    seen.outcome = run_plan(plan, clock=time.perf_counter, actors=[look])
    return seen


def watch_routers(seen, patch):
    honest = Router.handle

    def handle(self, event, now):
        if isinstance(event, RpcReceived):
            at, untrusted = seen.world.loop.time(), seen.untrusted()
            if event.peer in untrusted and self._signer.peer_id not in untrusted:
                seen.rpcs.append((at, event.peer, self._signer.peer_id, event.rpc))
        return honest(self, event, now)

    patch.setattr(Router, "handle", handle)


def watch_places(seen, patch):
    honest = StreamSlots.take

    def take(self, peer, now):
        place, lost = honest(self, peer, now)
        seen.places.append((now, self, peer, self._trust.trusted(peer), place, lost))
        return place, lost

    patch.setattr(StreamSlots, "take", take)


def watch_worth(seen, patch):
    honest = RateLimiter.adjust

    def worth(self, peer, cost):
        honest(self, peer, cost)
        if cost < 0:
            seen.worth[peer] += 1

    patch.setattr(RateLimiter, "adjust", worth)


def watch_pages(seen, patch):
    honest = AntiEntropy._round

    async def one(self, peer, skip, asked):
        listed, wanted = await honest(self, peer, skip, asked)
        if self._context.signer.peer_id not in seen.untrusted():
            seen.pages.append((seen.world.loop.time(), peer, listed))
        return listed, wanted

    patch.setattr(AntiEntropy, "_round", one)


def watch_checks(seen, patch):
    honest = ValidatorFlow._start_check

    def start(self, *arguments):
        honest(self, *arguments)
        workers = [peer for peer, count in self._workers.items() for _ in range(count)]
        at_once = sum(not self._has_reputation(peer) for peer in workers)
        seen.checks = max(seen.checks, at_once)

    patch.setattr(ValidatorFlow, "_start_check", start)


def honest_work_went_on(seen):
    """Check that commits of honest workers during the attack were certified."""
    moments = {round(moment.at): moment.certified for moment in seen.outcome.series.moments}
    during = moments[35] - moments[20]
    assert during >= 3
    assert seen.outcome.result.rollouts.lost == 0
    assert seen.outcome.result.certified_false == 0


# Gossip


def distinct_offers(rpc, _data):
    return sum(len(entry.message_ids) for entry in rpc.ihave)


def messages_but_pages(rpc, _):
    """Count messages, except pages, votes and reveals: honest nodes forward many in each epoch."""
    messages = [decode_message(one) for one in rpc.publish]
    return sum(isinstance(one, Fault) or not one.topic.endswith("pages") for one in messages)


RPCS_RECEIVED = {
    "graft-flood": (lambda rpc, _: len(rpc.graft), 20_000),
    "ihave-flood": (distinct_offers, 100 * IDS),
    "iwant-flood": (lambda rpc, _: len(rpc.iwant), 10_000),
    "invalid-signatures": (messages_but_pages, 100),
    "slow-rpc": (lambda _, data: EMPTY_FIELDS * (len(data) == 2 * EMPTY_FIELDS), 500_000),
}
"""Contents of a flood, and the minimum that must arrive at honest nodes; an honest untrusted peer
sends a hundredth of it."""


@pytest.mark.parametrize("behaviour", each(RPCS_RECEIVED))
def test_a_flood_of_rpcs_comes_in_and_work_goes_on(play, behaviour):
    seen = play(behaviour)
    kind, least = RPCS_RECEIVED[behaviour]
    assert seen.count(kind) >= least
    assert {target for _, _, target, _ in seen.rpcs} >= {
        item.signer.peer_id for item in seen.honest()
    }
    honest_work_went_on(seen)


@together("malformed-rpc")
def test_what_is_no_rpc_comes_in_three_times_from_each_and_then_nobody_listens(play):
    seen = play("malformed-rpc")
    bad = Counter(
        (peer, target) for _, peer, target, data in seen.rpcs if not isinstance(decoded(data), Rpc)
    )
    assert len(bad) > 20
    # A burst is read at once; everything after the third is dropped with the link.
    assert max(bad.values()) <= 8
    honest_work_went_on(seen)


@pytest.mark.parametrize("behaviour", each(["invalid-signatures", "malformed-rpc"]))
def test_who_breaks_the_protocol_is_kept_away_by_everybody_and_nobody_else_is(play, behaviour):
    seen = play(behaviour)
    banned = [seen.status[item.name].peers_banned for item in seen.honest()]
    assert max(banned) <= UNTRUSTED
    assert sum(banned) > len(banned) * UNTRUSTED / 2


@pytest.mark.parametrize(
    "behaviour", each(["graft-flood", "ihave-flood", "iwant-flood", "slow-rpc"])
)
def test_who_only_says_too_much_is_not_kept_away_yet(play, behaviour):
    seen = play(behaviour)
    assert not any(seen.status[item.name].peers_banned for item in seen.honest())


@together("slow-rpc")
def test_rpcs_that_take_long_to_read_cost_their_readers_what_they_cost(play):
    seen, plain = play("slow-rpc"), play("false-sync")
    fields = seen.count(RPCS_RECEIVED["slow-rpc"][0])
    extra = sum(item.host.core.spent_seconds for item in seen.honest())
    extra -= sum(item.host.core.spent_seconds for item in plain.honest())
    assert extra == pytest.approx(FIELD_SECONDS * fields, rel=0.2)


@pytest.mark.parametrize("behaviour", each(RPC_FLOODS))
def test_a_flood_begins_and_ends_when_the_scenario_says(play, behaviour):
    seen = play(behaviour)
    kind = RPCS_RECEIVED.get(behaviour, (lambda _, __: 0, 0))[0]
    rates = Counter()
    for at, _, _, data in seen.rpcs:
        rpc = decoded(data)
        phase = "before" if at < FROM else "during" if at < UNTIL + LATE else "after"
        rates[phase] += kind(rpc, data) if isinstance(rpc, Rpc) else 1
    assert rates["before"] + rates["after"] < rates["during"] / 5, "an honest router grafts, too"


# Streams


@together("slow-streams")
def test_streams_that_are_held_take_what_untrusted_peers_share_and_nobody_trusted_waits(play):
    seen = play("slow-streams")
    untrusted = seen.untrusted()
    held = [row for row in seen.places if row[2] in untrusted and FROM <= row[0] <= LONGER_UNTIL]
    assert sum(place is not None for *_, place, _ in held) > 300
    assert sum(place is None for *_, place, _ in held) > 10, "they want more than there is"
    trusted = [row for row in seen.places if row[3] and FROM <= row[0] <= LONGER_UNTIL]
    assert len(trusted) > 50
    assert all(place is not None for *_, place, _ in trusted)
    honest_work_went_on(seen)


@together("stream-flood")
def test_who_opens_streams_that_nothing_comes_of_is_soon_kept_away(play):
    seen, plain = play("stream-flood"), play("false-sync")
    extra = sum(item.host.core.spent_seconds for item in seen.honest())
    extra -= sum(item.host.core.spent_seconds for item in plain.honest())
    opened = extra / OPEN_SECONDS
    offered = 2 * STREAMS_AT_ONCE * len(seen.untrusted()) * (UNTIL - FROM)
    assert 1000 < opened < offered / 2
    assert sum(seen.status[item.name].peers_banned for item in seen.honest()) > 0
    assert seen.worth.keys() & seen.untrusted(), "they have downloaded weights"
    honest_work_went_on(seen)


# Commits


def commits_of(daemon, untrusted):
    entries = daemon.replica.ledger.commits.entries.values()
    return [entry for entry in entries if entry.commit.signer in untrusted]


@together("junk-commits")
def test_junk_commits_are_held_and_share_few_checks(play):
    seen = play("junk-commits")
    validators = [seen.daemons[name] for name in seen.daemons if name.startswith("validator")]
    for daemon in validators:
        junk = commits_of(daemon, seen.untrusted())
        assert len(junk) > 2 * UNTRUSTED
        assert len({entry.commit.message.body for entry in junk}) == len(junk)
    assert 0 < seen.checks <= UNTRUSTED_CHECKS
    honest_work_went_on(seen)


# Membership


@together("record-spam")
def test_two_records_of_one_sequence_are_held_by_different_nodes_with_their_lies(play):
    seen = play("record-spam")
    told = {}
    for roster in seen.records.values():
        for peer, member in roster.items():
            if member is not None:
                record = member.record
                told.setdefault((peer, record.message.sequence), {})[record.digest] = record.message
    lies = [one for records in told.values() for one in records.values()]
    assert sum(one.upload_bytes_per_second == UPLOAD_BYTES_PER_SECOND for one in lies) > 5
    assert any(len(records) == 2 for records in told.values())
    honest_work_went_on(seen)


@together("conflicting-records")
def test_a_record_and_its_denial_are_held_by_different_nodes_and_all_agree_in_the_end(play):
    seen = play("conflicting-records")
    told = {}
    for roster in seen.records.values():
        for peer, member in roster.items():
            if member is not None:
                message = member.record.message
                told.setdefault((peer, message.sequence), set()).add(message.leaving)
    assert {True, False} in told.values()
    honest_work_went_on(seen)


@together("capacity-liars")
def test_who_calls_its_line_the_fastest_gets_no_more_of_the_forest_than_any_new_node(play):
    seen = play("capacity-liars")
    untrusted, rates = seen.untrusted(), []
    for item in seen.honest():
        members = seen.daemons[item.name].reader.observer.forest()
        most = seen.world.manifest.manifest.shardcast.upload_bytes_per_second_max
        lies = [member for member in members if member.peer in untrusted]
        rates += [member.upload_bytes_per_second for member in lies]
        assert all(member.upload_bytes_per_second <= most for member in lies)
    held = [
        member.record.message.upload_bytes_per_second
        for roster in seen.records.values()
        for member in roster.values()
        if member is not None
    ]
    assert max(held) == UPLOAD_BYTES_PER_SECOND, "they lied"
    assert rates, "and were heard"
    assert seen.outcome.attack.fed_share <= 0.25
    honest_work_went_on(seen)


@together("sybil-flood")
def test_new_keys_without_end_fill_the_roster_and_take_nobodys_place(play):
    seen = play("sybil-flood")
    known = {item.signer.peer_id for item in seen.world.machines.values()}
    for item in seen.honest():
        daemon = seen.daemons[item.name]
        members = {record.signer for record in daemon.replica.roster.records()}
        assert members >= {one.signer.peer_id for one in seen.honest()}
        assert len(members - known) >= 4 * UNTRUSTED
    assert seen.outcome.attack.misdials_per_minute == 0, "they are said to be at the attackers"
    honest_work_went_on(seen)


@together("address-reflection")
def test_dials_at_a_door_that_others_point_at_are_few(play):
    seen = play("address-reflection")
    named = {
        host_of(address)
        for item in seen.honest()
        for record in seen.daemons[item.name].replica.roster.records()
        for address in record.message.addresses
        if not address.endswith(f"/p2p/{seen.world.machines[host_of(address)].signer.peer_id}")
    }
    assert len(named) == 1
    dialled = seen.outcome.attack.misdials_per_minute
    assert 0 < dialled <= SILENT_DIALS_MAX * len(seen.honest())
    honest_work_went_on(seen)


@together("withheld-body")
def test_who_shows_no_bodies_has_nothing_certified_and_others_work_on(play):
    seen = play("withheld-body")
    manifest = seen.world.manifest.manifest
    first, last = (manifest.epoch_at(START + at) for at in (FROM + 10, LONGER_UNTIL))
    daemon = seen.daemons["worker-1"]
    withheld = [
        entry
        for entry in commits_of(daemon, seen.untrusted())
        if first < entry.commit.message.epoch <= last
    ]
    assert len(withheld) > UNTRUSTED / 2
    assert not any(entry.certificate for entry in withheld)
    moments = {round(moment.at): moment.certified for moment in seen.outcome.series.moments}
    assert moments[45] - moments[20] >= 5


# Attacks from the start


@together("cold-boot")
def test_attackers_that_are_there_first_keep_nobody_from_meeting(play):
    seen = play("cold-boot")
    early = {peer for at, peer, _, _ in seen.rpcs if at < 6}
    assert len(early) > UNTRUSTED / 2, "before the others have all begun"
    for item in seen.honest():
        status = seen.status[item.name]
        listens = item.name == "worker-0"  # it lost its disk, and waits for other users of its key
        assert status.state == ("syncing" if listens else "ready"), (item.name, status.reason)
    honest_work_went_on(seen)


# Joining nodes


@together("false-sync")
def test_a_new_node_that_is_told_that_there_is_nothing_asks_somebody_else(play):
    seen = play("false-sync")
    lies = [
        listed for at, peer, listed in seen.pages if peer in seen.untrusted() and FROM < at < UNTIL
    ]
    assert len(lies) >= 3
    assert 0 in lies, "an empty page"
    assert max(lies) <= len(seen.world.machines), "or one of records alone"
    ours, others = (seen.daemons[name].replica.ledger for name in ("worker-0", "worker-1"))
    assert ours.chain.version == others.chain.version
    honest_work_went_on(seen)


@together("eclipse")
def test_untrusted_peers_keep_to_one_worker_and_it_still_hears_of_everything(play):
    seen = play("eclipse")
    untrusted, names = (
        seen.untrusted(),
        {item.signer.peer_id: name for name, item in seen.world.machines.items()},
    )
    # A node that dials an untrusted peer stays connected until that peer's next check.
    others = [
        names[peer]
        for name, peers in seen.connections.items()
        if seen.world.machines[name].untrusted_peer
        for peer in peers
        if names[peer] != "worker-0"
    ]
    assert len(others) <= UNTRUSTED / 2
    assert untrusted <= set(seen.connections["worker-0"])
    ours, others = (seen.daemons[name].replica.ledger for name in ("worker-0", "worker-1"))
    assert ours.chain.version == others.chain.version
    honest_work_went_on(seen)


# Combined attacks


@together("covert-flash")
def test_who_bides_its_time_says_nothing_wrong_before(play):
    seen = play("covert-flash")
    noisy = [
        at
        for at, _, _, data in seen.rpcs
        if len(data) > 8_000 or getattr(decoded(data), "graft", ())
    ]
    assert sum(FROM <= at < UNTIL + LATE for at in noisy) > 100
    assert sum(at < FROM for at in noisy) < 60, "grafts of an honest router"
    honest_work_went_on(seen)


# Catalogue


def test_every_attack_of_the_catalogue_begins_and_ends_and_leaves_time_to_recover():
    attacks = [name for name in scenario_names() if name.startswith("attack-")]
    assert len(attacks) == 24
    for name in attacks:
        scenario = load_scenario(name)
        (plan,) = scenario.adversaries
        assert name in (f"attack-{plan.behaviour}", f"attack-{plan.behaviour}-joining")
        assert plan.per_node == 1
        began, ended = scenario.attack_seconds
        assert began >= 60 or plan.behaviour == "cold-boot", name
        assert scenario.seconds - ended >= 22 * scenario.recipe().epochs.seconds, name
        works = plan.behaviour == "withheld-body"
        assert Role(plan.role) is (Role.INFERENCE if works else Role.RELAY)

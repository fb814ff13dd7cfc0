"""Replica invariants under arbitrary messages in arbitrary order.

The invariants are computed from the envelopes alone, with msgpack, BLAKE3 and Ed25519 and without
the code under test.
"""

from collections import Counter
from functools import cache

import base58
import msgpack
import pytest
from blake3 import blake3
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
)

from protocol.consensus.member import Contents
from protocol.core.crypto import digest
from protocol.core.types import ValidationResult
from protocol.ledger import branches as branches_module
from protocol.ledger.chain import Lead
from protocol.ledger.commits import COMMITS_IN_FLIGHT_MAX, CommitState
from protocol.messages import Certificate, Page, PageVote
from protocol.replica import replica as replica_module
from protocol.replica.replica import Replica
from tests.worlds.messages import World, fingerprint, run_manifest
from tests.worlds.page_book import fast_output, fast_verify

WORLD = World(run_manifest(trainers=2))
WAITING_MAX = 6
LAST_EPOCH = 39
"""Nothing is pruned before, so that totals can be recomputed."""


# The independent view


def opened(envelope: bytes) -> tuple[str, dict]:
    """Return signer and payload of an envelope with a valid signature."""
    fields = msgpack.unpackb(envelope)
    kind = fields["kind"].encode()
    key = Ed25519PublicKey.from_public_bytes(base58.b58decode(fields["signer"])[6:])
    covered = b"prime-node/2" + bytes([len(kind)]) + kind + WORLD.run_id + fields["payload"]
    key.verify(fields["signature"], covered)
    return fields["signer"], msgpack.unpackb(fields["payload"])


def message_id(envelope: bytes) -> bytes:
    """Return the id of a message: it does not cover the signature."""
    fields = msgpack.unpackb(envelope)
    kind, signer = fields["kind"].encode(), fields["signer"].encode()
    domain = b"prime-node/2" + bytes([len(kind)]) + kind + WORLD.run_id
    return blake3(domain + signer + fields["payload"]).digest()


@cache
def is_proven(commit, certificate) -> bool:
    """Return whether a certificate has enough equal verdicts of the right committee."""
    _, shown = opened(certificate.envelope)
    drawing = WORLD.book.drawing(commit)
    page, listing = drawing.page.envelope, drawing.parent.page.envelope
    is_listed = commit.digest in opened(listing)[1]["commits"]
    is_listed = is_listed and opened(page)[1]["parent"] == message_id(listing)
    beacon = drawing.beacon
    validators = [peer for peer in WORLD.manifest.genesis.validators if peer != commit.signer]
    ranked = sorted(
        validators, key=lambda peer: blake3(beacon + commit.digest + peer.encode()).digest()
    )
    votes = [opened(envelope) for envelope in shown["verdicts"]]
    agreeing = {
        signer
        for signer, verdict in votes
        if verdict["commit"] == commit.digest and verdict["accept"] is shown["accepted"]
    }
    # Committees of three and four, and a quorum of three in both.
    places = 4 if shown["escalated"] else 3
    enough = len(agreeing) >= 3 and agreeing <= set(ranked[:places])
    enough = enough and is_listed and shown["page"] == message_id(page)
    return enough and (shown["accepted"] or shown["escalated"]) and len(agreeing) == len(votes)


HEARD = st.sampled_from([True, True, False])


class ReplicaMachine(RuleBasedStateMachine):
    """One replica, and honest and dishonest senders of messages."""

    mail = Bundle("mail")
    commits = Bundle("commits")
    versions = Bundle("versions")

    def __init__(self):
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(replica_module, "WAITING_MAX", WAITING_MAX)
        self.patch.setattr(branches_module, "VERSIONS_WAITING_MAX", WAITING_MAX)
        self.lead = Lead(0, b"")
        self.patch.setattr(Replica, "lead", property(lambda _: self.lead))
        self.replica = Replica(WORLD.manifest, fast_verify, fast_output)
        WORLD.refresh(self.replica, 0)
        self.replica.receive(WORLD.genesis().envelope, WORLD.at(0))
        self.epoch = 0
        self.drawn: dict = {}
        self.unpaged: list = []
        self.chains: dict = {}
        self.published: dict = {}

    @property
    def now(self) -> float:
        return WORLD.at(self.epoch)

    # Messages, delivered at once, later or never

    @initialize(target=commits)
    def start(self):
        first = [WORLD.commit(worker) for worker in WORLD.workers]
        for signed in first:
            self.chains[signed.signer, 0] = [signed]
            self.hear(signed)
        return multiple(*first)

    def say(self, signed, heard):
        if heard:
            self.hear(signed)
        return signed

    @rule(
        target=commits,
        heard=HEARD,
        worker=st.integers(0, 2),
        version=st.sampled_from([0, 0, 0, 1, 2, 2**53]),
        late=st.integers(-3, 3),
        forks=st.sampled_from([False, False, False, True]),
        tokens=st.integers(1, 33),
    )
    def commit(self, heard, worker, version, late, forks, tokens):
        chain = self.chains.setdefault(WORLD.workers[worker].peer_id, [])
        slot = len(chain) - forks if chain else 0
        checkpoint = self.replica.ledger.chain.get(version)
        signed = WORLD.commit(
            WORLD.workers[worker],
            slot,
            version=version,
            checkpoint=checkpoint.digest if checkpoint else digest(b"a guess"),
            epoch=max(0, self.epoch - late),
            tokens=tokens,
        )
        chain[slot:] = [signed]
        return self.say(signed, heard)

    @rule(target=mail, commit=commits)
    def post(self, commit):
        return commit

    @rule(
        target=mail,
        heard=HEARD,
        commit=commits,
        validator=st.integers(0, 5),
        accept=st.booleans(),
    )
    def verdict(self, heard, commit, validator, accept):
        signed = WORLD.verdict(WORLD.validators[validator], commit, accept=accept)
        return self.say(signed, heard)

    def draw(self, commit, paged):
        """Publish the pages that draw the committee of a commit: now, or when time passes."""
        if commit.digest not in self.drawn:
            self.unpaged.append(commit)
        if paged:
            self.publish_pages()

    def publish_pages(self):
        for commit in self.unpaged:
            self.replica.pages.offer_chain(WORLD.book.drawing(commit).to_offer())
            self.drawn[commit.digest] = commit
        self.unpaged.clear()

    @rule(
        target=mail,
        heard=HEARD,
        paged=HEARD,
        commit=commits,
        about=commits,
        ranks=st.lists(st.integers(0, 5), min_size=1, max_size=6),
        accepted=st.booleans(),
        escalated=st.booleans(),
        liar=st.integers(-6, 5),
        lists=st.sampled_from([False, False, False, True]),
    )
    def certificate(self, *, heard, paged, commit, about, ranks, accepted, escalated, liar, lists):
        committee = WORLD.committee(commit)
        self.draw(commit, paged)
        verdicts = [
            WORLD.verdict(
                WORLD.by_peer[committee.ranking[rank]],
                about if place == liar else commit,
                accept=accepted if place != liar - 1 else not accepted,
            )
            for place, rank in enumerate(ranks)
        ]
        message = Certificate(
            commit=commit.digest,
            page=(committee.page.parent if lists else committee.page).digest,
            escalated=escalated,
            accepted=accepted,
            verdicts=tuple(verdict.envelope for verdict in verdicts),
        )
        return self.say(WORLD.sealed(message, WORLD.validators[0]), heard)

    @rule(
        target=mail,
        heard=HEARD,
        paged=HEARD,
        commit=commits,
        accepted=st.booleans(),
        late=st.booleans(),
    )
    def outcome(self, heard, paged, commit, accepted, late):
        self.draw(commit, paged)
        certificate = WORLD.certificate(commit, accepted=accepted, escalated=not accepted or late)
        return self.say(certificate, heard)

    @rule(
        target=versions,
        heard=HEARD,
        parent=st.none() | versions,
        trainer=st.integers(0, 1),
        term=st.integers(0, 2),
        batch=st.lists(commits, max_size=3),
    )
    def version(self, heard, parent, trainer, term, batch):
        parent = parent or self.replica.ledger.chain.head
        learned = tuple(commit.digest for commit in batch)
        term += parent.message.term
        return self.say(WORLD.checkpoint(parent, trainer, term=term, batch=learned), heard)

    @rule(target=mail, version=versions)
    def announce(self, version):
        return version

    @rule(back=st.integers(0, 2), terms=st.sampled_from([0, 0, 1, 2]))
    def final_page(self, back, terms):
        """A final page names a version from the one before on, and may begin a term."""
        chain = self.replica.ledger.chain
        head = chain.get(max(0, chain.place(self.lead.head), chain.version - back))
        self.lead = Lead(self.lead.term + terms, head.digest)
        self.replica.advance(self.now)
        assert chain.is_taken(head.digest)
        later = [entry.manifest for entry in chain.checkpoints[chain.place(head.digest) + 1 :]]
        assert all(version.message.term == self.lead.term for version in later)

    @rule(target=mail, who=st.integers(0, 2), role=st.sampled_from(["inference", "validator"]))
    def record(self, who, role):
        return WORLD.record(WORLD.workers[who], (role,), self.epoch)

    # Events

    @rule(signed=mail)
    def deliver(self, signed):
        self.hear(signed)

    def hear(self, signed):
        before = fingerprint(self.replica)
        received = self.replica.receive(signed.envelope, self.now)
        if received.result is not ValidationResult.ACCEPT:
            # An outranked certificate may still bring verdicts that are news.
            assert {one.message.kind for one in received.settled} <= {"verdict"}
            assert (fingerprint(self.replica) == before) is (received.settled == ())
        else:
            assert received.fault is None
            assert (
                self.replica.receive(signed.envelope, self.now).result
                is not ValidationResult.ACCEPT
            )

    @rule(signed=mail, data=st.data())
    def deliver_damaged(self, signed, data):
        place = data.draw(st.integers(0, len(signed.envelope) - 1))
        damaged = bytearray(signed.envelope)
        damaged[place] ^= data.draw(st.integers(1, 255))
        before = fingerprint(self.replica)
        assert self.replica.receive(bytes(damaged), self.now).result is ValidationResult.REJECT
        assert fingerprint(self.replica) == before

    @precondition(lambda self: self.epoch < LAST_EPOCH)
    @rule(epochs=st.sampled_from([0, 0, 1, 2, 8]), paged=HEARD)
    def time_passes(self, epochs, paged):
        """Pages may come later."""
        self.epoch = min(LAST_EPOCH, self.epoch + epochs)
        WORLD.refresh(self.replica, self.epoch)
        if paged:
            self.publish_pages()
        self.replica.advance(self.now)

    # Invariants

    @invariant()
    def totals_are_what_is_there(self):
        ledger = self.replica.ledger
        entries = list(ledger.commits.entries.values())
        for worker, counts in [(None, ledger.workers.totals), *ledger.workers.counts.items()]:
            own = [entry for entry in entries if worker in (None, entry.commit.signer)]
            states = Counter(entry.state for entry in own)
            certified = [entry for entry in own if entry.state is CommitState.CERTIFIED]
            rejected = [entry for entry in own if entry.state is CommitState.REJECTED]
            assert counts.committed == len(own)
            assert counts.certified == states[CommitState.CERTIFIED]
            assert counts.rejected == states[CommitState.REJECTED]
            assert counts.expired == states[CommitState.EXPIRED]
            assert counts.trained == sum(entry.trained_in is not None for entry in own)
            assert counts.tokens_certified == sum(one.commit.message.tokens for one in certified)
            assert counts.reasons == Counter(entry.reason for entry in rejected)

    @invariant()
    def what_waits_is_bounded(self):
        ledger = self.replica.ledger
        for worker in WORLD.workers:
            waiting = [
                entry
                for entry in ledger.commits.entries.values()
                if entry.commit.signer == worker.peer_id and entry.state is CommitState.COMMITTED
            ]
            assert ledger.commits.in_flight(worker.peer_id) == len(waiting) <= COMMITS_IN_FLIGHT_MAX
        for table in (
            self.replica._early_verdicts,
            self.replica._early_certificates,
        ):
            assert len(table) <= WAITING_MAX
        assert len(self.replica.ledger.branches) <= WAITING_MAX

    @invariant()
    def outcomes_are_proven(self):
        for entry in self.replica.ledger.commits.entries.values():
            settled = entry.state in (CommitState.CERTIFIED, CommitState.REJECTED)
            assert settled == (entry.certificate is not None)
            if entry.certificate is not None:
                accepted = entry.state is CommitState.CERTIFIED
                assert entry.certificate.message.accepted is accepted
                assert is_proven(entry.commit, entry.certificate)
                assert entry.commit.digest in self.drawn, "its committee is drawn by a page"

    @invariant()
    def versions_are_one_chain(self):
        chain = [entry.manifest for entry in self.replica.ledger.chain.checkpoints]
        learned: list = []
        for number, signed in enumerate(chain):
            assert signed.message.version == number
            if number:
                assert signed.message.parent == chain[number - 1].digest
                assert signed.message.term >= chain[number - 1].message.term
            learned += signed.message.batch
            # One version per parent and term, now and at any time before.
            place = (signed.message.parent, signed.message.term)
            assert self.published.setdefault(place, signed.digest) == signed.digest
        assert len(set(learned)) == len(learned)
        for entry in self.replica.ledger.commits.entries.values():
            versions = [
                n for n, one in enumerate(chain) if entry.commit.digest in one.message.batch
            ]
            assert versions == ([] if entry.trained_in is None else [entry.trained_in])

    @invariant()
    def all_that_was_learned_from_has_a_certificate(self):
        entries = self.replica.ledger.commits.entries
        for version in self.replica.ledger.chain.checkpoints:
            for commit in version.manifest.message.batch:
                assert entries[commit].certificate is not None

    @invariant()
    def nothing_was_learned_from_a_policy_that_was_too_old(self):
        entries = self.replica.ledger.commits.entries
        for number, version in enumerate(self.replica.ledger.chain.checkpoints):
            for commit in version.manifest.message.batch:
                lag = number - 1 - entries[commit].commit.message.version
                assert lag <= WORLD.manifest.grpo.async_level

    @invariant()
    def a_slot_has_one_commit_or_ended_its_workers_reputation(self):
        commits = [entry.commit for entry in self.replica.ledger.commits.entries.values()]
        slots = Counter((one.signer, one.message.slot) for one in commits)
        for (worker, _), count in slots.items():
            assert count == 1 or self.replica.ledger.workers.is_slashed(worker)

    def teardown(self):
        self.patch.undo()
        again = WORLD.restarted(self.replica)
        # Commits of a dropped version expire sooner on the replica that has seen it.
        ends = self.epoch + WORLD.manifest.committee.expire_after_epochs + 1
        for one in (self.replica, again):
            one.ledger.advance(ends)
        assert fingerprint(again)[1:] == fingerprint(self.replica)[1:]


ReplicaMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
test_a_replica_keeps_its_word = ReplicaMachine.TestCase


# Convergence


def everything_said(world, bad, fork) -> list:
    """Return all messages of a run with an honest majority, and those of one dishonest validator.

    ``bad`` holds each worker's dishonest commits, ``fork`` the final version from which a second
    trainer went on in a later term.
    """
    said = [world.record(one, ("validator",)) for one in world.validators]
    chains = [world.chain(worker, len(bad[0])) for worker in world.workers]
    drawing = world.book.drawing(*(commit for chain in chains for commit in chain))
    certified = []
    for chain, lies in zip(chains, bad, strict=True):
        for commit, lie in zip(chain, lies, strict=True):
            said += [commit, *outcome(world, commit, accepted=not lie)]
            certified += [] if lie else [commit.digest]
    first, parent = [world.genesis()], None
    for number in range(4):
        batch = tuple(certified[2 * number : 2 * number + 2])
        first.append(world.checkpoint(first[-1], batch=batch))
    parent, second = first[fork], []
    for number in range(3):
        batch = tuple(certified[2 * (fork + number) + 1 : 2 * (fork + number) + 3])
        second.append(world.checkpoint(parent, 1, term=1, batch=batch))
        parent = second[-1]
    leads = Contents(term=1, head=first[fork].digest)
    for node in (drawing.parent, drawing, *world.book.extended(drawing, leads, Contents())):
        assert node.proof is not None
        said += [node.page, *node.proof.opened_votes(node.council, world.run_id)]
    return said + first + second


def outcome(world, commit, *, accepted) -> list:
    """Return verdicts and certificates of honest validators and one dishonest one."""
    committee = world.committee(commit)
    liar = world.validators[0]
    honest = [peer for peer in committee.ranking if peer != liar.peer_id]
    verdicts = [
        world.verdict(world.by_peer[peer], commit, accept=accepted)
        for peer in committee.escalated
        if peer in honest
    ]
    lies = [world.verdict(liar, commit, accept=accept) for accept in (accepted, not accepted)]
    true = Certificate(
        commit=commit.digest,
        page=committee.page.digest,
        escalated=True,
        accepted=accepted,
        verdicts=tuple(verdict.envelope for verdict in verdicts[:3]),
    )
    false = true.model_copy(
        update={"accepted": not accepted, "verdicts": (lies[1].envelope, verdicts[0].envelope)}
    )
    return [
        *verdicts,
        *lies,
        world.sealed(true, world.by_peer[verdicts[0].signer]),
        world.sealed(false, liar),
    ]


def conclusions(replica) -> tuple:
    ledger = replica.ledger
    return (
        {
            key: (entry.state, entry.reason, entry.trained_in)
            for key, entry in ledger.commits.entries.items()
        },
        [entry.manifest.digest for entry in ledger.chain.checkpoints],
        ledger.workers.counts,
    )


CONVERGING = {
    slash: World(
        run_manifest(
            trainers=2,
            credit={"slash": slash},
            grpo={"async_level": 7},  # all commits are to version 0
            shardcast={"versions_kept": 8},
        )
    )
    for slash in (True, False)
}


@settings(max_examples=15, deadline=None)
@given(
    slash=st.booleans(),
    bad=st.lists(st.lists(st.booleans(), min_size=3, max_size=3), min_size=3, max_size=3),
    fork=st.integers(0, 3),
    randoms=st.lists(st.randoms(use_true_random=False), min_size=2, max_size=2),
)
def test_the_same_messages_in_any_order_lead_to_the_same_conclusions(slash, bad, fork, randoms):
    world = CONVERGING[slash]
    said = everything_said(world, bad, fork)
    replicas = [Replica(world.manifest, fast_verify, fast_output) for _ in randoms]
    for replica, random in zip(replicas, randoms, strict=True):
        order = said + random.sample(said, len(said) // 3)
        random.shuffle(order)
        for place, signed in enumerate(order):
            is_of_pages = isinstance(signed.message, Page | PageVote)
            epoch = max(2, signed.message.epoch) if is_of_pages else 2
            replica.receive(signed.envelope, world.at(epoch))
            if place % 7 == 0:
                replica.advance(world.at(2))
        replica.advance(world.at(2))
    one, other = map(conclusions, replicas)
    assert one == other
    expected = [
        CommitState.REJECTED if lie else CommitState.CERTIFIED for lies in bad for lie in lies
    ]
    assert sorted(state for state, _, _ in one[0].values()) == sorted(expected)
    assert replicas[0].ledger.chain.head.message.term == 1
    assert replicas[0].ledger.chain.version == fork + 3

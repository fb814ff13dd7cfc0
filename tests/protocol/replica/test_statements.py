"""Verdicts and seals at a replica: what waits, what is evidence, who is named."""

import pytest

from protocol.consensus.dissents import DISSENTS_MAX
from protocol.core.containers import table_sizes
from protocol.core.types import ValidationResult
from protocol.ledger.commits import CommitState
from protocol.messages import Certificate
from protocol.replica.page_contents import PageContents
from tests.worlds.messages import World, fingerprint, run_manifest

ACCEPT, IGNORE, REJECT = ValidationResult.ACCEPT, ValidationResult.IGNORE, ValidationResult.REJECT
WORLD = World(run_manifest(validators=8, committee={"size": 3, "escalated_size": 7}))
WORKER = WORLD.workers[0]
COMMIT = WORLD.commit(WORKER)
COMMITTEE = WORLD.committee(COMMIT)
RANKED = [WORLD.by_peer[peer] for peer in COMMITTEE.ranking]
PAGE = COMMITTEE.page.digest
NOW = WORLD.at(1)
WITNESS = WORLD.verdict(RANKED[0], COMMIT).message.witness
INVENTED = tuple(-20 * 10**9 - one for one in WITNESS)


def taking(*signed):
    """Return a replica that has accepted messages."""
    target = WORLD.replica()
    for one in signed:
        assert take(target, one) is ACCEPT
    return target


def take(target, signed, now=NOW):
    return target.receive(signed.envelope, now).result


def certified(commit, lazy=(), *, dissents=True):
    """Return a certificate of the larger committee without its ``lazy`` members."""
    committee = WORLD.committee(commit)
    members = [WORLD.by_peer[peer] for peer in committee.escalated]
    honest = [one for one in members if one not in lazy]
    contradicting = [one for one in members if one in lazy and dissents]
    message = Certificate(
        commit=commit.digest,
        page=committee.page.digest,
        escalated=True,
        accepted=True,
        verdicts=tuple(WORLD.verdict(one, commit).envelope for one in honest),
        dissents=tuple(
            WORLD.verdict(one, commit, witness=INVENTED).envelope for one in contradicting
        ),
    )
    return WORLD.sealed(message, honest[0])


# Seals


def test_a_seal_is_accepted_once_and_never_stored():
    seal = WORLD.verdict_seal(WORLD.verdict(RANKED[0], COMMIT))
    target = taking(COMMIT)
    received = target.receive(seal.envelope, NOW)
    assert (received.result, received.lasting) == (ACCEPT, False)
    assert take(target, seal) is IGNORE
    assert seal.envelope not in target.envelopes()
    assert target.receive(WORLD.verdict(RANKED[0], COMMIT).envelope, NOW).lasting


@pytest.mark.parametrize("order", [0, 1])
def test_a_verdict_that_was_copied_after_its_seal_becomes_evidence(order):
    """The lazy member seals nothing of value, receives an honest verdict, and signs it."""
    honest, lazy = WORLD.verdict(RANKED[0], COMMIT), RANKED[1]
    seal = WORLD.verdict_seal(WORLD.verdict(lazy, COMMIT, witness=INVENTED))
    copied = WORLD.sealed(honest.message, lazy)
    target = taking(COMMIT, honest)
    first, second = ((seal, copied), (copied, seal))[order]
    assert take(target, first) is ACCEPT
    received = target.receive(second.envelope, NOW)
    assert (received.result, str(received.fault.code)) == (IGNORE, "equivocation")
    (message,) = target.verdicts.evidence_due()
    evidence = WORLD.sealed(message, WORKER)
    other = taking(evidence)
    assert list(other.intake.evidence.evidence) == [lazy.peer_id]


def test_a_certificate_with_a_copied_verdict_counts_and_is_evidence():
    """The other members may hold another seal of the copier."""
    lazy = RANKED[1]
    seal = WORLD.verdict_seal(WORLD.verdict(lazy, COMMIT, witness=INVENTED))
    target = taking(COMMIT, seal)
    assert take(target, WORLD.certificate(COMMIT)) is ACCEPT
    (message,) = target.verdicts.evidence_due()
    assert take(target, WORLD.sealed(message, WORKER)) is ACCEPT
    assert lazy.peer_id in target.intake.evidence


def test_two_seals_of_one_member_are_evidence():
    one, other = (
        WORLD.verdict_seal(WORLD.verdict(RANKED[0], COMMIT, nonce=bytes([n]) * 32)) for n in (1, 2)
    )
    target = taking(COMMIT, one)
    assert take(target, other) is IGNORE
    (message,) = target.verdicts.evidence_due()
    assert {message.first, message.second} == {one.envelope, other.envelope}


def statements():
    verdict = WORLD.verdict(RANKED[0], COMMIT)
    return {"verdict": verdict, "seal": WORLD.verdict_seal(verdict)}


@pytest.mark.parametrize("kind", ["verdict", "seal"])
def test_a_statement_waits_for_its_commit(kind):
    signed = statements()[kind]
    target = taking()
    assert take(target, signed) is IGNORE
    assert table_sizes(target.tables)["waiting"] == 1
    assert take(target, COMMIT) is ACCEPT
    assert target.advance(NOW) == [signed]
    assert table_sizes(target.tables)["waiting"] == 0


@pytest.mark.parametrize("kind", ["verdict", "seal"])
def test_a_statement_waits_for_its_page(kind):
    target = taking()
    later = WORLD.commit(WORKER, epoch=5)
    verdict = WORLD.verdict(RANKED[0], COMMIT, page=WORLD.book.drawing(later).digest)
    signed = verdict if kind == "verdict" else WORLD.verdict_seal(verdict)
    take(target, COMMIT)
    unknown = WORLD.verdict(RANKED[0], COMMIT, page=b"u" * 32)
    unknown = unknown if kind == "verdict" else WORLD.verdict_seal(unknown)
    assert take(target, unknown) is IGNORE
    assert table_sizes(target.tables)["waiting"] == 1
    assert take(target, signed) is IGNORE, "its page draws another commit"
    assert table_sizes(target.tables)["waiting"] == 1
    assert not target.verdicts.pools.get(COMMIT.digest)


def test_verdicts_for_two_pages_are_no_contradiction_and_decide_apart():
    """A member judges again if the page that drew it was abandoned."""
    target = taking(COMMIT)
    after = WORLD.book.drawing(COMMIT, after=1)
    target.pages.offer_chain(after.to_offer())
    for page, accept in ((PAGE, True), (after.digest, False)):
        verdict = WORLD.verdict(RANKED[0], COMMIT, accept=accept, page=page)
        assert take(target, verdict) is ACCEPT
        assert list(target.verdicts.pool(COMMIT.digest, page).verdicts.values()) == [verdict]
    assert target.verdicts.evidence_due() == []
    again = WORLD.restarted(target)
    assert again.verdicts.pools.keys() == target.verdicts.pools.keys()
    assert [len(one.verdicts) for one in again.verdicts.pools[COMMIT.digest].values()] == [1, 1]


def test_what_is_not_of_a_member_is_ignored():
    target = taking(COMMIT)
    before = fingerprint(target)
    outsider = WORLD.workers[1]
    seal = WORLD.verdict_seal(WORLD.verdict(RANKED[0], COMMIT), outsider)
    for signed in (WORLD.verdict(outsider, COMMIT), seal):
        assert take(target, signed) is IGNORE
    assert fingerprint(target) == before


# Dissents


def rollouts(count):
    """Return commits whose larger committee includes the lazy member."""
    found, number = [], 0
    while len(found) < count:
        commit = WORLD.commit(WORKER, tokens=1 + number % 60, body=bytes([number % 250]) * 32)
        number += 1
        if LAZY.peer_id in WORLD.committee(commit).escalated:
            found.append(commit)
    return found


LAZY = WORLD.validators[0]


def working(commits, lazy=(LAZY,), **options):
    """Return a replica that has accepted certificates, listed so that no limit applies."""
    target = WORLD.replica()
    for commit in commits:
        target.ledger.restore_commit(commit)
        assert take(target, certified(commit, lazy, **options)) is ACCEPT
        assert target.ledger.commits.entries[commit.digest].state is CommitState.CERTIFIED
    return target


def test_a_member_that_invents_its_values_loses_its_seat():
    commits = rollouts(DISSENTS_MAX + 1)
    target = working(commits[:-1])
    assert target.dissents.verdicts_of(LAZY.peer_id) == (DISSENTS_MAX, DISSENTS_MAX)
    assert not target.dissents.named
    target.ledger.restore_commit(commits[-1])
    assert take(target, certified(commits[-1], [LAZY])) is ACCEPT
    assert list(target.dissents.named) == [LAZY.peer_id]
    contents = PageContents(target, RANKED[0].peer_id, 0, lambda: 0)
    assert contents.is_guilty(LAZY.peer_id)
    others = [one for one in WORLD.validators if one is not LAZY]
    assert not any(contents.is_guilty(one.peer_id) for one in others)


def test_a_restart_counts_the_same():
    target = working(rollouts(DISSENTS_MAX + 1))
    again = WORLD.restarted(target)
    assert list(again.dissents.named) == [LAZY.peer_id]
    for one in WORLD.validators:
        assert again.dissents.verdicts_of(one.peer_id) == target.dissents.verdicts_of(one.peer_id)


def test_a_certificate_that_leaves_out_a_dissent_is_replaced_by_one_that_has_it():
    (commit,) = rollouts(1)
    without, having = certified(commit, [LAZY], dissents=False), certified(commit, [LAZY])
    for order in ((without, having), (having, without)):
        target = working([])
        target.ledger.restore_commit(commit)
        for one in order:
            take(target, one)
        assert target.ledger.commits.entries[commit.digest].certificate == having
        assert target.dissents.verdicts_of(LAZY.peer_id) == (1, 1)


def test_a_false_dissent_is_refused():
    (commit,) = rollouts(1)
    target = working([])
    target.ledger.restore_commit(commit)
    good = certified(commit, [LAZY])
    framed = good.message.model_copy(update={"dissents": (WORLD.verdict(LAZY, commit).envelope,)})
    assert take(target, WORLD.sealed(framed, WORLD.by_peer[good.signer])) is REJECT
    unreadable = good.message.model_copy(update={"dissents": (b"no verdict",)})
    assert take(target, WORLD.sealed(unreadable, WORLD.by_peer[good.signer])) is REJECT
    assert target.dissents.verdicts_of(LAZY.peer_id) == (0, 0)
    assert target.ledger.commits.entries[commit.digest].certificate is None

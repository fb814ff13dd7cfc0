"""Validity of certificates: signatures, signers, and the committee drawn from the beacon."""

import pytest

from simulations.checkers.wire import Rules, Wire, blake3_digest
from tests.simulations.trace_examples import TraceExample, forged, small_run

VALIDATORS = ("validator-0", "validator-1", "validator-2")
MANY = {"relay": ("relay",), "trainer": ("trainer",), "worker-0": ("inference",)}
MANY |= {f"validator-{number}": ("validator",) for number in range(10)}


def signed_run():
    """Return a run with signature checks."""
    return small_run(signatures="ed25519")


def committed(run, worker="worker-0"):
    """Make a rollout that its validators know; return its commit."""
    commit = run.commit(worker)
    run.stored(commit, worker, *VALIDATORS)
    return commit


# Signatures


def test_a_run_with_good_signatures_breaks_no_rule():
    run = signed_run()
    commit = run.certified("worker-0")
    run.published(1, run.genesis, [commit])
    assert run.violations == []
    assert run.certificates.certified == 1


def test_a_verdict_in_a_certificate_is_signed_by_its_author():
    run = signed_run()
    commit = committed(run)
    verdicts = [run.verdict(name, commit) for name in VALIDATORS[:2]]
    run.stored(verdicts[0], "validator-0")
    certificate = run.assembled("validator-0", commit, [verdicts[0], forged(verdicts[1])])
    run.spread(certificate, "relay")
    assert run.rules_broken == ["certified-only"]
    assert "a verdict's signature" in run.violations[0].what


def test_a_certificate_is_signed_by_its_author():
    run = signed_run()
    commit = committed(run)
    run.stored(forged(run.certificate(VALIDATORS[:2], commit)), "relay")
    assert run.rules_broken == ["certified-only"]
    assert "its signature" in run.violations[0].what


def test_a_forged_copy_does_not_take_the_place_of_a_signed_message():
    run = signed_run()
    wire = Wire(Rules.read(run.manifest), check_signatures=True)
    envelope = run.commit("worker-0")
    assert wire.open(forged(envelope), 0.0).well_signed is False
    assert wire.message(run.digest(envelope)) is None
    good = wire.open(envelope, 1.0)
    assert wire.open(forged(envelope, bytes(63) + b"1"), 2.0).well_signed is False
    assert wire.message(run.digest(envelope)) is good


# Contents of a certificate


@pytest.mark.parametrize("commit", [bytes(32), None], ids=["of nothing", "of another message"])
def test_a_certificate_is_about_a_rollout_that_somebody_made(commit):
    run = small_run()
    about = run.digest(run.genesis) if commit is None else commit
    certificate = run.envelope(
        "certificate", "validator-0", commit=about, escalated=False, accepted=True, verdicts=[]
    )
    run.spread(certificate, "relay")
    assert "commit is unknown" in run.violations[0].what


def test_a_certificate_holds_verdicts_and_nothing_else():
    run = small_run()
    commit = committed(run)
    verdicts = [run.verdict(name, commit) for name in VALIDATORS]
    for other in (b"rubbish", run.genesis):
        run = small_run()
        run.stored(commit, "worker-0")
        run.spread(run.assembled("validator-0", commit, [*verdicts[:2], other]), "relay")
        assert "a message that is no verdict" in run.violations[0].what


def test_a_verdict_in_a_certificate_is_no_longer_than_one_may_be():
    run = small_run()
    commit = committed(run)
    long = run.verdict("validator-1", commit, detail="x" * 1024)
    run.spread(
        run.assembled("validator-0", commit, [run.verdict("validator-0", commit), long]), "relay"
    )
    assert "a verdict of 1" in run.violations[0].what


def test_a_verdict_in_a_certificate_says_what_the_certificate_says():
    run = small_run()
    commit = committed(run)
    verdicts = [
        run.verdict("validator-0", commit),
        run.verdict("validator-1", commit, accept=False),
    ]
    run.spread(run.assembled("validator-0", commit, verdicts), "relay")
    assert "a verdict contradicts it" in run.violations[0].what


def test_who_is_dishonest_may_hold_a_certificate_that_is_wrong():
    run = small_run()
    commit = committed(run)
    run.stored(run.certificate(["validator-0"], commit), "validator-0", "liar")
    assert run.violations == []
    assert run.certificates.certified == 0


# The committee


def many(**options):
    """Return a run in which every node has known ten validators for a while."""
    run = TraceExample(MANY, **options)
    run.up()
    run.published(0)
    run.wait(12)
    return run


def ranked(run, commit):
    """Return the validators in the order of the beacon's draw for a commit."""
    beacon = run.watch.rules.beacon(run.epoch() + 1)
    names = [name for name in run.roles if name.startswith("validator")]
    digest = run.digest(commit)
    return sorted(names, key=lambda name: blake3_digest(beacon + digest + run.peers[name].encode()))


def certify(run, commit, signers, **options):
    """Deliver a certificate by ``signers`` to a relay; return the violated rules."""
    run.stored(commit, "worker-0")
    run.spread(run.certificate(list(signers), commit, **options), "relay")
    return run.rules_broken


@pytest.mark.parametrize(("last", "broken"), [(3, []), (4, ["certified-only"])])
def test_a_view_may_differ_by_two_ranks_and_no_more(last, broken):
    run = many()
    commit = run.commit("worker-0")
    order = ranked(run, commit)
    assert certify(run, commit, [order[0], order[last]]) == broken


@pytest.mark.parametrize(("last", "broken"), [(4, []), (5, ["certified-only"])])
def test_the_same_holds_of_the_wider_committee(last, broken):
    run = many()
    commit = run.commit("worker-0")
    order = ranked(run, commit)
    assert certify(run, commit, [order[0], order[last]], escalated=True) == broken


@pytest.mark.parametrize(("signers", "broken"), [(5, ["certified-only"]), (6, [])])
def test_two_thirds_of_the_wider_committee_decide(signers, broken):
    run = many(size=3, escalated_size=9, roster_min=3)
    commit = run.commit("worker-0")
    chosen = ranked(run, commit)[:signers]
    assert certify(run, commit, chosen, escalated=True) == broken


def test_all_of_the_first_committee_must_accept():
    run = many(size=3, escalated_size=6, roster_min=3)
    commit = run.commit("worker-0")
    assert certify(run, commit, ranked(run, commit)[:2]) == ["certified-only"]


def own_worker_run():
    """Return a run, a commit of a validator, and the other validators in the order drawn."""
    run = many()
    for slot in range(100):
        commit = run.commit("validator-0", body_bytes=slot)
        order = ranked(run, commit)
        if order.index("validator-0") < 2:
            run.stored(commit, "validator-0")
            return run, commit, [name for name in order if name != "validator-0"]
    raise AssertionError("never drawn")


def test_a_worker_takes_no_place_in_the_committee_for_its_own_rollout():
    run, commit, others = own_worker_run()
    run.spread(run.certificate([others[0], others[3]], commit), "relay")
    assert run.violations == []


def test_a_worker_does_not_judge_its_own_rollout():
    run, commit, others = own_worker_run()
    run.spread(run.certificate([others[0], "validator-0"], commit), "relay")
    assert run.rules_broken == ["certified-only"]
    assert "a worker judges its own rollout" in run.violations[0].what


# Validators known to every node


def outsiders(run, commit):
    """Return two validators outside of the committee drawn from all ten."""
    return ranked(run, commit)[-2:]


@pytest.mark.parametrize(
    ("story", "broken"),
    [
        ("nothing", ["certified-only"]),
        ("a fault that goes on", []),
        ("calm for less than a record lives", []),
        ("calm for longer", ["certified-only"]),
    ],
)
def test_views_are_alike_when_no_fault_was_within_the_life_of_a_record(story, broken):
    run = many()
    if story != "nothing":
        run.emit("world", "fault", what="partition")
    if story.startswith("calm"):
        run.emit("world", "calm")
        run.wait(8 if story == "calm for longer" else 2)
    commit = run.commit("worker-0")
    assert certify(run, commit, outsiders(run, commit)) == broken


def test_views_may_differ_at_the_beginning():
    run = TraceExample(MANY)
    run.up()
    run.published(0)
    run.wait(2)
    commit = run.commit("worker-0")
    assert certify(run, commit, outsiders(run, commit)) == []


@pytest.mark.parametrize("excuse", ["came late", "restarted", "never came"])
def test_only_validators_that_were_up_for_long_are_certain(excuse):
    """If the others have just joined, the rest may have any rank in a smaller view."""
    run = TraceExample(MANY)
    late = [f"validator-{number}" for number in range(2, 10)]
    run.up(*(name for name in MANY if excuse == "restarted" or name not in late))
    run.published(0)
    run.wait(12)
    if excuse == "restarted":
        for name in late:
            run.down(name)
    if excuse != "never came":
        run.up(*late)
    commit = run.commit("worker-0")
    assert certify(run, commit, ["validator-0", "validator-1"]) == []

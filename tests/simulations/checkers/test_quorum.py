"""Validity of certificates: signatures, signers, and the committee drawn from the beacon."""

import pytest

from simulations.checkers.wire import Rules, Wire
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
    page = run.digest(run.voted(run.page()))
    certificate = run.envelope(
        "certificate",
        "validator-0",
        commit=about,
        page=page,
        escalated=False,
        accepted=True,
        verdicts=[],
        dissents=[],
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
    """Return a run with ten validators."""
    run = TraceExample(MANY, **options)
    run.up()
    run.published(0)
    return run


def drawn(run, worker="worker-0"):
    """Return a commit, the page that draws its committee, and the names in the order drawn."""
    commit = run.commit(worker)
    run.stored(commit, worker)
    page = run.voted(run.page(run.listed(commit, epoch=run.epoch() + 1)))
    return commit, page, [name for name in run.committee(commit, page) if name != worker]


def certify(run, commit, signers, page, **options):
    """Deliver a certificate by ``signers`` to a relay; return the violated rules."""
    run.spread(run.certificate(list(signers), commit, page=page, **options), "relay")
    return run.rules_broken


@pytest.mark.parametrize(("last", "broken"), [(1, []), (2, ["certified-only"])])
def test_the_first_committee_is_exactly_the_one_that_the_page_draws(last, broken):
    run = many()
    commit, page, order = drawn(run)
    assert certify(run, commit, [order[0], order[last]], page) == broken


@pytest.mark.parametrize(("last", "broken"), [(2, []), (3, ["certified-only"])])
def test_the_larger_committee_is_exactly_the_one_that_the_page_draws(last, broken):
    run = many()
    commit, page, order = drawn(run)
    assert certify(run, commit, [order[0], order[last]], page, escalated=True) == broken


@pytest.mark.parametrize(("signers", "broken"), [(5, ["certified-only"]), (6, [])])
def test_two_thirds_of_the_larger_committee_decide(signers, broken):
    run = many(size=3, escalated_size=9)
    commit, page, order = drawn(run)
    assert certify(run, commit, order[:signers], page, escalated=True) == broken


def test_all_of_the_first_committee_must_accept():
    run = many(size=3, escalated_size=6)
    commit, page, order = drawn(run)
    assert certify(run, commit, order[:2], page) == ["certified-only"]


@pytest.mark.parametrize(("size", "signers"), [(2, 2), (12, 10)])
def test_a_small_council_is_the_whole_committee(size, signers):
    run = many(size=size, escalated_size=12)
    commit, page, order = drawn(run)
    assert certify(run, commit, order[:signers], page) == []


def own_worker_run():
    """Return a run, a commit of a validator, its page, and the other validators in order."""
    run = many()
    commits = [run.commit("validator-0", body_bytes=size) for size in range(100)]
    page = run.voted(run.page(run.listed(*commits)))
    for commit in commits:
        order = run.committee(commit, page)
        if order.index("validator-0") < 2:
            run.stored(commit, "validator-0")
            return run, commit, page, [name for name in order if name != "validator-0"]
    raise AssertionError("never drawn")


def test_a_worker_takes_no_place_in_the_committee_for_its_own_rollout():
    run, commit, page, others = own_worker_run()
    assert certify(run, commit, others[:2], page) == []


def test_a_worker_does_not_judge_its_own_rollout():
    run, commit, page, others = own_worker_run()
    assert certify(run, commit, [others[0], "validator-0"], page) == ["certified-only"]
    assert "a worker judges its own rollout" in run.violations[0].what


# The page of a certificate


def certified_by(run, commit, page):
    """Return the flaw of a certificate by the committee that ``page`` draws, or an empty text."""
    order = run.committee(commit, page)
    certify(run, commit, order[:2], page)
    return run.violations[0].what if run.violations else ""


def test_a_page_without_a_quorum_draws_no_committee():
    run = many()
    commit = run.commit("worker-0")
    run.stored(commit, "worker-0")
    page = run.page(run.listed(commit))
    run.voted(page, *(f"validator-{number}" for number in range(6)))
    assert "its page is not notarised" in certified_by(run, commit, page)


def test_more_than_two_thirds_of_the_council_are_a_quorum():
    run = many()
    commit = run.commit("worker-0")
    run.stored(commit, "worker-0")
    page = run.page(run.listed(commit))
    run.voted(page, *(f"validator-{number}" for number in range(7)))
    assert certified_by(run, commit, page) == ""


def test_votes_of_other_keys_or_for_another_place_do_not_count():
    run = many()
    commit = run.commit("worker-0")
    run.stored(commit, "worker-0")
    page = run.page(run.listed(commit))
    run.voted(page, *(f"validator-{number}" for number in range(6)))
    run.voted(page, "relay", "trainer")
    run.stored(run.vote("validator-6", page, epoch=3), "validator-6")
    run.stored(run.vote("validator-7", page, council=bytes(32)), "validator-7")
    run.stored(run.vote("validator-8", page, parent=bytes(32)), "validator-8")
    assert "its page is not notarised" in certified_by(run, commit, page)


def test_a_page_with_too_few_reveals_draws_no_committee():
    run = many()
    commit = run.commit("worker-0")
    run.stored(commit, "worker-0")
    page = run.voted(run.page(run.listed(commit), reveals=[b"", b""]))
    assert "its page draws no committee" in certified_by(run, commit, page)


def test_half_of_the_reveals_draw_a_committee():
    run = many()
    commit = run.commit("worker-0")
    run.stored(commit, "worker-0")
    page = run.voted(run.page(run.listed(commit), reveals=[b"", bytes(80)]))
    assert certified_by(run, commit, page) == ""


@pytest.mark.parametrize(("place", "flaw"), [(0, "another page"), (1, ""), (2, "another page")])
def test_the_drawing_page_after_the_list_draws_the_committee(place, flaw):
    run = many()
    commit = run.commit("worker-0")
    run.stored(commit, "worker-0")
    listing = run.voted(run.page(epoch=1, commits=[run.digest(commit)]))  # draws for older commits
    pages = [listing, *run.chain(2, listing)]
    what = certified_by(run, commit, pages[place])
    assert flaw in what
    assert bool(what) is bool(flaw)


def test_no_page_draws_the_committee_of_a_commit_that_is_not_listed():
    run = many()
    commit = run.commit("worker-0")
    run.stored(commit, "worker-0")
    page = run.chain(2, epoch=1)[-1]
    assert "another page draws its committee" in certified_by(run, commit, page)


def test_a_page_without_a_draw_leaves_a_commit_to_the_next_page():
    run = many()
    commit = run.commit("worker-0")
    run.stored(commit, "worker-0")
    idle = run.voted(run.page(run.listed(commit), reveals=[b"", b""]))
    page = run.voted(run.page(idle))
    assert certified_by(run, commit, page) == ""


# Values of verdicts


FAR = [-(10**9)] * 7 + [-(10**9) - 64_000_001]
"""Just beyond the sum that honest verdicts may differ by: 64 times ``gap_sigma``."""


@pytest.mark.parametrize(
    ("changes", "broken"),
    [
        ({"witness": [*FAR[:7], FAR[7] + 1]}, False),
        ({"witness": FAR}, True),
        ({"replays": [7] * 7 + [8]}, False),
        ({"replays": [7] * 6 + [8, 8]}, True),
    ],
)
def test_verdicts_in_a_certificate_agree(changes, broken):
    run = small_run()
    commit = committed(run)
    verdicts = [run.verdict("validator-0", commit), run.verdict("validator-1", commit, **changes)]
    run.spread(run.assembled("validator-0", commit, verdicts), "relay")
    assert [one.what.rpartition(": ")[2] for one in run.violations] == (
        ["its verdicts do not agree"] if broken else []
    )


@pytest.mark.parametrize(
    ("changes", "broken"),
    [
        ({"witness": FAR}, False),
        ({"accept": False}, False),
        ({"accept": False, "reason": "statistics"}, True),
        ({}, True),
    ],
)
def test_a_dissent_contradicts_the_others(changes, broken):
    run = small_run()
    run.dishonest("validator-2")
    commit = committed(run)
    verdicts = [run.verdict(name, commit) for name in VALIDATORS[:2]]
    dissent = run.verdict("validator-2", commit, **changes)
    certificate = run.assembled("validator-0", commit, verdicts, escalated=True, dissents=[dissent])
    run.spread(certificate, "relay")
    assert [one.rule for one in run.violations] == (["certified-only"] if broken else [])


# Lazy validators


def with_dissents(run, count, behaviour="", dissents=9):
    """Spread certificates with validator 2 outside of them, the first ones against it."""
    run.watch.swarm.members["validator-2"].behaviour = behaviour
    for number in range(count):
        commit = run.commit("worker-0", slot=number)
        run.stored(commit, "worker-0")
        others = [run.verdict(name, commit) for name in VALIDATORS[:2]]
        if number < dissents:
            dissent = run.verdict("validator-2", commit, witness=FAR)
            parts = {"verdicts": others, "dissents": [dissent]}
        else:
            parts = {"verdicts": [*others, run.verdict("validator-2", commit)]}
        certificate = run.assembled("validator-0", commit, escalated=True, **parts)
        run.stored(certificate, "validator-0")
        if run.violations:
            return number + 1
    return None


def test_an_honest_validator_is_never_found():
    run = small_run()
    assert with_dissents(run, 5) is None
    assert with_dissents(small_run(), 7) == 6


@pytest.mark.parametrize(("dissents", "violated"), [(6, None), (5, 64)])
def test_a_lazy_validator_is_found_within_64_verdicts(dissents, violated):
    run = small_run()
    assert with_dissents(run, 66, "skipped-replay", dissents) == violated
    if violated:
        assert run.rules_broken == ["lazy-found"]

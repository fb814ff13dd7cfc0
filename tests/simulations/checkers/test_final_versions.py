"""Rules of the final versions: heads of pages, votes for them, and the versions that nodes take."""

import pytest

from tests.simulations.trace_examples import TraceExample

VALIDATORS = ("validator-0", "validator-1", "validator-2")
TRAINERS = {
    "relay": ("relay",),
    "trainer": ("trainer",),
    "standby": ("trainer",),
    "worker-0": ("inference",),
    "liar": ("inference", "edited-tokens"),
    **dict.fromkeys(VALIDATORS, ("validator",)),
}
OTHER = b"\2" * 32


def chain_of_three():
    """Return a run with versions 0 to 3, and the manifests."""
    run = TraceExample(TRAINERS)
    run.up()
    versions = [run.published(0)]
    for number in (1, 2, 3):
        versions.append(run.published(number, versions[-1]))
    return run, versions


def found(run):
    """Return what is wrong; empty if nothing is."""
    assert {violation.rule for violation in run.violations} <= {"final-versions"}
    return "".join(violation.what for violation in run.violations)


# Pages


def test_the_term_of_a_page_never_falls():
    run, versions = chain_of_three()
    parent = run.led(2, versions[1])
    run.voted(run.page(parent, term=1))
    assert run.rules_broken == ["valid-pages"]
    assert "its term 1 follows 2" in run.violations[0].what


@pytest.mark.parametrize("other", [{"term": 1}, {"head": True}, {}])
@pytest.mark.parametrize("place", ["change", "close"])
def test_a_page_at_a_change_of_the_council_repeats_the_leader_and_the_final_version(place, other):
    run, versions = chain_of_three()
    if "head" in other:
        other = {"head": run.digest(versions[2]), "work": b""}
    parent, change = run.led(0, versions[1]), {"removed": [run.key("validator-0")]}
    if place == "close":
        parent, change = run.voted(run.page(parent, **change)), {}
    run.voted(run.page(parent, **change, **other))
    assert run.rules_broken == (["valid-pages"] if other else [])
    assert all("while its council ends" in one.what for one in run.violations)


@pytest.mark.parametrize("term", [0, 1])
def test_the_final_version_only_grows(term):
    run, versions = chain_of_three()
    run.led(term, versions[1])
    run.led(term, versions[3])
    assert found(run) == ""
    run.led(term, versions[2])
    assert "which does not descend" in found(run)


def test_the_final_version_is_of_one_chain():
    run, versions = chain_of_three()
    run.dishonest(*TRAINERS)
    other = run.published(3, versions[2], policy=OTHER)
    run.led(0, versions[3])
    assert found(run) == ""
    run.led(0, run.published(4, other))
    assert "which does not descend" in found(run)


def test_no_page_makes_an_unknown_version_final():
    run, versions = chain_of_three()
    run.dishonest(*TRAINERS)
    run.led(0, run.checkpoint(4, versions[3]))
    assert "which does not descend" in found(run)


# Votes


def proposed(run, version, parent=b""):
    """Return a page that makes a version final."""
    return run.page(parent, epoch=7, head=run.digest(version))


def test_an_honest_member_votes_for_a_final_version_that_it_has_accepted():
    run, versions = chain_of_three()
    version = run.checkpoint(4, versions[3])
    run.stored(version, "trainer", "validator-0")
    run.voted(proposed(run, version), "validator-0", "validator-1")
    run.wait(1)
    assert "whose final version" in found(run)
    assert run.violations[0].node == "validator-1"


def test_a_member_may_write_a_version_after_its_vote():
    run, versions = chain_of_three()
    version = run.checkpoint(4, versions[3])
    run.stored(version, "trainer")
    run.voted(proposed(run, version), "validator-1")
    run.stored(version, "validator-1")
    run.wait(2)
    assert found(run) == ""


@pytest.mark.parametrize("excuse", ["dishonest", "crash", "same"])
def test_a_member_need_not_have_written_every_version(excuse):
    run, versions = chain_of_three()
    version, parent = run.checkpoint(4, versions[3]), b""
    run.stored(version, "trainer")
    if excuse == "dishonest":
        run.dishonest("validator-1")
    elif excuse == "same":
        run.dishonest(*VALIDATORS)
        parent = run.voted(run.page(epoch=3, head=run.digest(version)))
        run.honest("validator-1")
    run.voted(proposed(run, version, parent), "validator-1")
    if excuse == "crash":
        run.down("validator-1")
    run.wait(2)
    assert found(run) == ""


def test_a_vote_for_a_notarised_page_is_a_sign_of_life():
    run, versions = chain_of_three()
    version = run.checkpoint(4, versions[3])
    run.stored(version, "trainer")
    run.dishonest(*VALIDATORS)
    page = run.voted(proposed(run, version))
    run.honest("validator-1")
    run.stored(run.vote("validator-1", page, epoch=8), "validator-1")
    run.wait(2)
    assert found(run) == ""


def test_what_was_lost_with_a_disk_is_no_longer_accepted():
    run, versions = chain_of_three()
    run.down("validator-1", how="lost")
    run.up("validator-1", restart=True)
    run.voted(proposed(run, versions[3]), "validator-1")
    run.wait(1)
    assert "whose final version" in found(run)


# Versions that nodes take


def conflicting(run, versions, *, term=1, author="standby"):
    """Return another version 2, which follows version 1."""
    return run.checkpoint(2, versions[1], term=term, author=author, policy=OTHER)


def test_versions_after_the_final_one_may_be_replaced_by_the_next_leader_s():
    run, versions = chain_of_three()
    run.led(1, versions[1])
    run.knows()
    run.spread(conflicting(run, versions))
    assert found(run) == ""


@pytest.mark.parametrize("known", [True, False])
def test_no_node_takes_a_version_that_conflicts_with_a_final_one_that_it_knows(known):
    run, versions = chain_of_three()
    run.led(1, versions[1])
    run.led(1, versions[2])
    if known:
        run.knows("relay")
    run.stored(conflicting(run, versions), "standby", "relay")
    assert ("conflicts" in found(run)) is known


def test_a_node_may_have_accepted_just_before_it_knew():
    run, versions = chain_of_three()
    run.led(1, versions[1])
    run.knows("relay")
    run.led(1, versions[2])
    run.emit("relay", "sample", final_epoch=run.pages.newest_final_epoch)
    version = conflicting(run, versions)
    run.stored(version, "standby", "relay")
    assert found(run) == ""
    run.wait(1)
    run.stored(version, "relay")
    assert "conflicts" in found(run)


@pytest.mark.parametrize("excuse", ["dishonest", "crash", "author"])
def test_what_other_nodes_take_is_their_affair(excuse):
    run, versions = chain_of_three()
    run.led(1, versions[2])
    run.knows()
    if excuse == "crash":
        run.down("relay")
        run.up("relay", restart=True)
    taker = {"dishonest": "liar", "crash": "relay", "author": "standby"}[excuse]
    version = run.checkpoint(2, versions[1], term=1, author="standby", policy=OTHER)
    run.dishonest("standby")
    run.stored(version, *dict.fromkeys(("liar", taker)))
    assert ("conflicts" in found(run)) is False
    run.stored(version, "validator-0")
    assert "conflicts" in found(run) or excuse == "crash"


def test_a_node_that_joins_late_takes_the_versions_before_the_final_one():
    run, versions = chain_of_three()
    run.led(1, versions[3])
    run.knows()
    for version in versions[::-1]:
        run.stored(version, "liar", "relay")
    assert found(run) == ""


@pytest.mark.parametrize(("term", "author"), [(0, "trainer"), (3, "standby")])
def test_a_version_is_of_a_term_that_a_final_page_names(term, author):
    run, versions = chain_of_three()
    run.led(1, versions[3])
    run.knows()
    run.spread(run.checkpoint(4, versions[3], term=1, author="standby"), "relay")
    assert found(run) == ""
    run.stored(run.checkpoint(4, versions[3], term=term, author=author), author, "relay")
    assert f"of term {term}, while term 1 leads" in found(run)


def test_a_version_of_the_term_before_may_have_been_accepted_just_before():
    run, versions = chain_of_three()
    run.knows("relay")
    run.led(1, versions[3])
    run.stored(run.checkpoint(4, versions[3]), "trainer", "relay")
    assert found(run) == ""


@pytest.mark.parametrize(("parent", "begins"), [(1, True), (2, False), (3, False)])
def test_a_term_begins_at_a_final_version(parent, begins):
    run, versions = chain_of_three()
    run.led(0, versions[1])
    run.led(1)
    version = run.checkpoint(parent + 1, versions[parent], term=1, author="standby", policy=OTHER)
    run.stored(version, "standby", "relay")
    assert ("does not begin" in found(run)) is not begins


def test_a_term_is_led_by_the_trainer_whose_turn_it_is():
    run, versions = chain_of_three()
    run.led(1, versions[3])
    run.stored(run.checkpoint(4, versions[3], term=1), "trainer", "relay")
    assert run.rules_broken == ["one-chain"]
    assert "not of its term's leader" in run.violations[0].what


def test_only_a_dishonest_trainer_publishes_two_versions_of_one_number():
    run, versions = chain_of_three()
    run.dishonest("trainer")
    run.stored(run.checkpoint(4, versions[3]), "trainer", "relay")
    run.stored(run.checkpoint(4, versions[3], policy=OTHER), "trainer", "worker-0")
    assert found(run) == ""


# Final pages of nodes


@pytest.mark.parametrize(("epoch", "broken"), [(1, False), (2, True), (-1, False)])
def test_a_node_follows_final_pages_only(epoch, broken):
    run = TraceExample(TRAINERS)
    run.up()
    run.chain(3, epoch=0)
    run.emit("liar", "sample", final_epoch=2)
    run.emit("relay", "sample", final_epoch=epoch)
    run.wait(1)
    assert ("that is not final" in found(run)) is broken

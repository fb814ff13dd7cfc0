"""Benchmarks of trust: their formulas against enumeration, their simulations against both."""

import importlib
import json
import sys
from dataclasses import replace
from itertools import combinations, product
from math import comb
from pathlib import Path
from statistics import fmean

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks" / "trust"


@pytest.fixture
def script(monkeypatch):
    """Import a script by name, as its neighbours do."""
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module


@pytest.fixture
def printed(script, monkeypatch, capsys):
    """Run a script and return what it prints."""

    def run(name, *options):
        monkeypatch.setattr(sys, "argv", [name, "--json", *options])
        script(name).main()
        return json.loads(capsys.readouterr().out)

    return run


# Committees


def outcomes(colluding, size, quorum):
    """Return the outcomes of a committee, counted by hand."""
    first, all_of_them = sum(colluding[:size]), sum(colluding)
    honest = len(colluding) - all_of_them
    false = first == size or all_of_them >= quorum
    rejected = first > 0 and all_of_them >= quorum
    return false, rejected, first > 0 and max(all_of_them, honest) < quorum


def test_formulas_are_shares_of_all_committees(script):
    members, coalition, size, escalated = 8, 3, 2, 4
    drawn = [
        outcomes([place in colluders for place in range(escalated)], size, 3)
        for colluders in combinations(range(members), coalition)
    ]
    shares = [fmean(some) for some in zip(*drawn, strict=True)]
    assert script("committees").formula(members, coalition, size, escalated) == pytest.approx(
        shares
    )
    assert all(0 < share < 1 for share in shares)


def test_a_council_is_unsafe_with_more_than_a_third(script):
    unsafe = script("committees").unsafe_council
    assert unsafe(3, 0.1) == pytest.approx(0.1**3)  # both quorums are the whole council
    assert unsafe(4, 0.5) == pytest.approx(11 / 16)
    assert [f"{unsafe(seats, 0.2):.0e}" for seats in (100, 200)] == ["7e-04", "3e-06"]


@pytest.mark.parametrize(("size", "escalated", "quorum"), [(2, 3, 2), (3, 7, 5), (3, 9, 6)])
def test_the_protocols_rules_decide_every_committee_as_counted(script, size, escalated, quorum):
    councils, committees = script("councils"), script("committees")
    manifest = councils.manifest_of(escalated + 1)
    rules = committees.Rules(
        manifest, size, escalated, councils.commit_of(manifest.run_id, bytes(32), 0)
    )
    page = replace(councils.Draws(manifest, 1).tree.root, epoch=1, draws=True)
    ranking = committees.draw(manifest, page, rules.commit).ranking
    for colluding in product((False, True), repeat=escalated):
        coalition = sum(colluding)
        ordered = sorted(zip(colluding, ranking, strict=False), reverse=True)
        joins = {peer: place for place, (_, peer) in enumerate(ordered)} | {ranking[-1]: escalated}
        assert rules.outcomes(page, joins, coalition) == outcomes(colluding, size, quorum)


def test_simulated_committees_agree_with_formulas(printed):
    options = ["--trials", "1500", "--withheld-trials", "80", "--sizes", "3/7", "9/27"]
    rows = printed("committees", *options)["rows"]
    assert [row["share"] for row in rows[:8]] == [0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4]
    assert [(row["size"], row["escalated"]) for row in rows[::8]] == [(3, 7), (9, 27)]
    assert max(row["sigmas"] for row in rows) < 5
    some = rows[7]
    assert some["simulated_false"] > 0.08
    assert some["formula_false_withheld"] > 3 * some["formula_false"]
    assert some["simulated_false_withheld"] > 3 * some["formula_false"]


# Beacons


def test_a_coalition_chooses_among_pages_with_enough_reveals(script):
    councils = script("councils")
    assert [councils.beacons(8, m) for m in (0, 1, 4, 5, 8)] == [1, 2, 16, 31, 163]
    draws = councils.Draws(councils.manifest_of(12), 1)
    for coalition in (0, 4, 6, 12):
        parent = draws.parent(0)
        colluding = draws.colluding_revealers(parent, 1, coalition)
        pages = list(draws.choices(parent, 1, coalition))
        assert len({page.beacon for page in pages}) == len(pages) == 2 ** len(colluding)
        assert sum(page.draws for page in pages) == councils.beacons(8, len(colluding))


def test_the_chance_of_early_knowledge_counts_silent_members(script):
    formula = script("grinding").formula_known_early
    assert formula(100, 30, 0, 8) == pytest.approx(comb(30, 8) / comb(100, 8))
    assert formula(100, 30, 0, 8) < 1e-4
    drawn = [
        sum(place < 4 for place in some)
        for some in combinations(range(10), 4)
        if not any(place in {8, 9} for place in some)
    ]
    assert drawn  # places 0 to 3 collude, 8 and 9 are honest and up, the rest is silent
    enough = sum(count >= 2 for count in drawn)
    assert formula(10, 4, 4, 4) == pytest.approx(enough / comb(10, 4))


def test_grinding_gains_nothing_before_the_beacon(printed):
    options = ["--bodies", "3000", "--bodies-each", "500", "--epochs", "3000"]
    rows = printed("grinding", *options, "--withheld-trials", "40")["rows"]
    last = rows[-1]
    assert 120 < last["chosen"] < 250  # 6.1 % of the bodies
    assert all(row["false_certificates"] == 0 for row in rows)
    assert all(max(row["sigmas"], row["sigmas_withheld"]) < 5 for row in rows)
    assert last["later_false_share"] < 0.15
    silent, expected = last["known_early_silent_share"], last["formula_known_early_silent"]
    assert silent == pytest.approx(expected, abs=4 * (expected / 3000) ** 0.5)
    assert last["choices_mean"] == pytest.approx(1.4**8, rel=0.5)
    assert last["choices_max"] <= 163
    assert last["false_withheld"] > 2 * last["formula_false"]


def test_a_certificate_passes_only_with_the_page_that_draws_its_commit(script):
    councils, grinding = script("councils"), script("grinding")
    manifest = councils.manifest_of(10)
    draws = councils.Draws(manifest, 1)
    first = draws.child(draws.tree.root, 0, grinding.EVERYBODY)
    counts = grinding.Grinding(manifest, draws, [3])
    commit = councils.commit_of(manifest.run_id, bytes(32), 0)
    listing = draws.child(first, 1, grinding.EVERYBODY, (commit.digest,))
    second = draws.child(listing, 2, grinding.EVERYBODY)
    passing = [
        counts.passes(commit, grinding.first_committee(manifest, page, commit))
        for page in (first, listing, second, draws.child(second, 3, grinding.EVERYBODY))
    ]
    assert passing == [False, False, True, False]


# Pages


def test_an_epoch_costs_what_its_messages_cost(printed):
    rows = printed("pages", "--councils", "4", "10", "--epochs", "3")["rows"]
    for row, reveals, quorum in zip(rows, (4, 8), (3, 7), strict=True):
        council = row["council"]
        messages = row["page_bytes"] + council * row["vote_bytes"] + reveals * row["reveal_bytes"]
        assert row["epoch_bytes"] == messages
        signatures = row["notarised_bytes"] - row["page_bytes"] - 64 * quorum
        assert 0 < signatures < 64
        assert 0 < row["handover_bytes"] - 3 * row["notarised_bytes"] + 200 < 300
        assert all(row[name] > 0 for name in row if name.endswith("_ms"))


# Witness values


@pytest.mark.long
def test_honest_engines_agree_and_each_lazy_member_is_named(printed):
    options = ["--sequences", "160", "--verdicts", "1400", "--trials", "8"]
    rows = printed("witnesses", *options)["rows"]
    assert [row["subject"] for row in rows] == ["testnet, fp32", "testnet, bf16"]
    for row in rows:
        assert (row["dissents"], row["honest_named"]) == (0, 0)
        assert 0 < row["error_mean"] < row["verdict_mean_limit"] < row["value_deviation"] / 10
        assert {one["named_within_64"] for one in row["lazy"]} == {1.0}
        assert all(6 <= one["verdicts_most"] <= 20 for one in row["lazy"])
    assert rows[0]["error_mean"] < 1e-4 < rows[1]["error_mean"]


# Time of validators, and free riders


@pytest.mark.long
def test_a_free_rider_gains_nothing(printed):
    (row,) = printed("validators_cost", "--rollouts", "6")
    assert 0 < row["learned_tokens"] < row["tokens"]
    riders = row["free_riders"]
    assert {one["audit"] for one in riders} == {"before", "now"}
    assert {one["kind"] for one in riders} == {"copies", "invents"}
    assert all(one["gain"] < 0 for one in riders)
    assert all(sum(one["reasons"].values()) == 6 for one in riders)

from dataclasses import replace

import pytest

from node.api.contributors import ContributorsPage, OwnWork
from node.cli.render.contributors import contributors_view, own_work_text, share_text
from node.local.units import count_text
from tests.browser.states import HOSTILE, STATES
from tests.node.api.status_examples import YOURS
from tests.node.cli.render.test_status import drawn

PAGE = STATES["ready"]().contributors


def test_own_work_is_one_line_and_its_credit_another():
    assert own_work_text(YOURS).splitlines() == [
        (
            "128 certified, 1.9 M tokens, 3.1 % of the run, rank 7 of 41; 12 waiting, 2 rejected "
            "(computation 1, reward 1)"
        ),
        "credit 150 M unlocked, 40 M locked",
    ]
    validator = OwnWork(checks=1_234_567, steps=1, credit_share=0.5, rank=1, contributors=2)
    assert own_work_text(validator) == (
        "0 certified, 1.23 M checked, 1 version published, 50.0 % of the run, rank 1 of 2; "
        "0 waiting, 0 rejected"
    )
    assert own_work_text(OwnWork()) == "0 certified; 0 waiting, 0 rejected"
    slashed = own_work_text(OwnWork(certified=1, forfeited=700))
    assert slashed.endswith("\ncredit 0 unlocked, 0 locked, 700 forfeited")


def test_skipped_slots_are_told_with_their_cost():
    assert own_work_text(OwnWork(skipped=1)) == "0 certified; 0 waiting, 0 rejected, 1 slot skipped"
    text = own_work_text(OwnWork(skipped=70, unpaid=6))
    assert text.endswith("0 rejected, 70 slots skipped (6 rollouts without credit for them)")


def test_the_most_frequent_reasons_are_told_without_what_controls_a_terminal():
    reasons = {"a": 1, "b": 3, "c": 2, "\x1b[31md": 4}
    line = own_work_text(OwnWork(rejected=10, rejected_reasons=reasons))
    assert line.endswith("10 rejected (�[31md 4, b 3, c 2)")


@pytest.mark.parametrize(
    ("share", "told"),
    [
        (0.0, "0.0 %"),
        (0.00001, "< 0.1 %"),
        (0.031, "3.1 %"),
        (0.99999, "> 99.9 %"),
        (1.0, "100.0 %"),
    ],
)
def test_a_share_is_never_rounded_to_nothing_or_to_all(share, told):
    assert share_text(share) == told


@pytest.mark.parametrize(
    ("count", "told"),
    [
        (0, "0"),
        (9_999, "9,999"),
        (10_000, "10 k"),
        (999_499, "999 k"),
        (999_500, "1 M"),
        (1_900_000, "1.9 M"),
        (2**63, "9,223,372 T"),
    ],
)
def test_a_count_has_three_digits(count, told):
    assert count_text(count) == told


def test_contributors_are_listed_by_rank_with_this_node_marked():
    lines = drawn(contributors_view(PAGE))
    assert max(map(len, lines)) <= 100
    assert lines[0].startswith("812 certified rollouts, 9.88 M tokens, 40 final versions")
    rows = lines[[line.split()[:1] for line in lines].index(["rank"]) + 1 :]
    assert [line.split()[0] for line in rows] == [str(rank) for rank in range(1, 15)]
    assert rows[0].split() == [
        *("1", "13.3", "%", "0", "0", "0", "40", "100", "M", "1.23", "M"),
        *("12D3KooW…c6iDEp", "Ada's", "workshop"),
    ]
    assert "12D3KooW…3sJj9c (slashed)" in rows[8]
    assert "12D3KooW…pt3N6p (you)" in rows[13]
    assert sum("(you)" in line for line in rows) == sum("(slashed)" in line for line in rows) == 1


def test_of_a_long_list_the_first_hundred_and_this_node_are_shown():
    page = STATES["peers-1000"]().contributors
    lines = drawn(contributors_view(page))
    assert lines[-1] == "and 899 more"
    assert lines[-2].split()[0] == "1000" and "(you)" in lines[-2]
    within = replace(page, own=page.rows[3])
    lines = drawn(contributors_view(within))
    assert lines[-1] == "and 900 more"
    assert lines[-2].split()[0] == "100"


def test_names_of_others_cannot_steer_the_terminal():
    rows = tuple(replace(PAGE.rows[0], name=word) for word in (*HOSTILE, "[red]x[/red]", "\x9b31m"))
    lines = drawn(contributors_view(replace(PAGE, rows=rows, total=len(rows))), 160)
    assert all(line.isprintable() for line in lines)
    assert any("[red]x[/red]" in line for line in lines)
    assert any("�gnp.exe�" in line for line in lines)


def test_before_any_work_the_view_says_so():
    assert drawn(contributors_view(ContributorsPage())) == ["No final page is counted yet."]
    lines = drawn(contributors_view(ContributorsPage(epoch=3)))
    assert lines[-1] == "Nobody has contributed yet."

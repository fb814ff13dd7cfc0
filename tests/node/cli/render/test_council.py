from dataclasses import replace

import pytest

from node.api.council import CouncilPage
from node.cli.render.council import council_view
from node.cli.render.status import status_view, why_view
from node.cli.render.style import short_peer
from tests.node.api.status_examples import COUNCIL, EXPLAINED, STATUS
from tests.node.cli.render.test_status import drawn, row


def test_a_council_at_a_glance():
    lines = drawn(council_view(COUNCIL), 110)
    assert lines[0].startswith("● 3 members (6 seats, era 2), final page 3 s ago, no votes of 1 of")
    assert row(lines, "seated").endswith("at epoch 158 by page 5e5e5e5e5e5e5e5e…, after 2 others")
    next_draw = "2; the next council is drawn from epoch 540 on, in 2 min 8 s"
    assert row(lines, "era").endswith(next_draw)
    assert row(lines, "quorum").endswith("5 of 6 votes, 4 in a recovery; the newest page lacks 1")
    assert row(lines, "final").endswith("page of epoch 410, 3 s (2 epochs) ago, 2 votes")
    assert row(lines, "notarised").endswith("page of epoch 411; committees drawn by that of 411")
    assert row(lines, "recent").endswith("57 have a notarised page and 54 drawn committees")
    leader = f"trainer {short_peer(COUNCIL.leader)}, term 3, live"
    assert row(lines, "leader").endswith(leader)
    assert row(lines, "version").endswith("39 is final, with all before it")
    first, silent, liar = lines[-5:-2]
    assert first.split()[1:3] == ["1", "genesis"]
    assert liar.split()[1] == "3"
    assert "epoch 411, 1 s ago" in first and first.endswith("votes")
    assert "epoch 402, 19 s ago" in silent and silent.endswith("silent")
    assert "epoch 158 (genesis key)" in liar and liar.endswith("two votes in epoch 393")
    reason = "the draw of era 2 gave it none; the next draw is due at epoch 540"
    assert lines[-1] == f"This node has no seat: {reason}."


def test_names_of_members_and_of_the_leader_are_last_in_their_lines():
    named = replace(COUNCIL.members[1], name="Éva [b]\x1b")
    members = (COUNCIL.members[0], named, COUNCIL.members[2])
    lines = drawn(council_view(replace(COUNCIL, members=members, leader_name="שרה")), 110)
    assert row(lines, "leader").endswith(f"{short_peer(COUNCIL.leader)}, term 3, live  שרה")
    assert row(lines, short_peer(named.peer_id)).split()[-3:] == ["silent", "Éva", "[b]�"]


def test_a_version_that_is_refused_is_in_the_line_of_the_leader():
    refused = "version 7 of trainer …abcdef: it hides 3 final rollouts\x1b"
    lines = drawn(council_view(replace(COUNCIL, refused=refused)), 160)
    expected = "term 3, live; refused: version 7 of trainer …abcdef: it hides 3 final rollouts�"
    assert row(lines, "leader").endswith(expected)
    told = drawn(why_view(replace(EXPLAINED, refused=refused)), 160)
    assert f"The council does not make final {refused[:-1]}�." in told
    assert not [line for line in drawn(why_view(EXPLAINED)) if "make final" in line]


def test_the_council_of_the_genesis_before_its_first_page():
    me = replace(COUNCIL.members[0], me=True, vote_epoch=-1, vote_age_seconds=None)
    young = CouncilPage(text="1 member", members_count=1, quorum=1, draw_epoch=720, members=(me,))
    lines = drawn(council_view(young))
    assert row(lines, "seated").endswith("by the genesis")
    assert row(lines, "era").endswith("none yet; the next council is drawn from epoch 720 on, now")
    assert row(lines, "final").endswith("no page yet")
    assert row(lines, "notarised").endswith("no page yet")
    assert row(lines, "recent").endswith("no completed epoch yet")
    assert row(lines, "leader").endswith("term 0, not live")
    assert row(lines, "version").endswith("none is final yet")
    assert "(you)" in lines[-1] and "none" in lines[-1] and lines[-1].endswith("votes")
    absent = replace(me, is_absent=True)
    assert drawn(council_view(replace(young, members=(absent,))))[-1].endswith("absent")


def test_before_a_run_there_is_no_council():
    assert drawn(council_view(CouncilPage())) == ["This node does not follow a run yet."]
    starting = replace(STATUS, council=CouncilPage())
    with pytest.raises(StopIteration):
        row(drawn(status_view(starting, starting.started_at)), "council")


def test_why_says_that_no_page_is_final():
    lines = drawn(why_view(replace(EXPLAINED, council="no final page for 40 s: why\x1b")))
    assert "Council: no final page for 40 s: why�." in lines
    assert not any(line.startswith("Council") for line in drawn(why_view(EXPLAINED)))

import io
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from node.api.v1.answers import RolloutCounts
from node.testnet.colours import BAD, DIM, GOOD, WARN
from node.testnet.display import save_picture
from node.testnet.nodes_view import fate
from node.testnet.plan import SwarmLayout
from node.testnet.poll import StatusSample
from node.testnet.record import SwarmRecord
from node.testnet.report import build_report
from node.testnet.screen import STAGE_TEXT, Screen, clock_text, eta_seconds, progress_line
from node.testnet.summary import draw_summary
from node.testnet.view import draw
from tests.node.testnet.testnet_swarms import (
    STARTED_AT,
    arrival,
    arrived,
    give,
    learned_swarm,
    sample,
    spreading_swarm,
    status,
)


def screen(**changes) -> Screen:
    joins = {"join_script": "/tmp/swarm/join.sh", "status_script": "/tmp/swarm/status.sh"}
    values = {"stage": "learning", "run_id": "1a2b3c4d5e"} | joins | changes
    return Screen("arithmetic", 0, 60, 300.0, **values)


def drawn(record: SwarmRecord, given: Screen, width: int, height: int = 32) -> list[str]:
    console = Console(width=width, file=io.StringIO(), color_system=None)
    console.print(draw(record, given, now=STARTED_AT + 175, width=width, height=height))
    return console.file.getvalue().splitlines()


@pytest.mark.parametrize("width", [60, 80, 100, 140])
@pytest.mark.parametrize("stage", STAGE_TEXT)
def test_it_draws_at_every_width_in_every_stage(width, stage):
    for record in (learned_swarm(), spreading_swarm(), SwarmRecord(STARTED_AT)):
        lines = drawn(record, screen(stage=stage), width)
        assert all(len(line) <= width for line in lines)


def test_it_shows_what_a_person_looks_for():
    record = learned_swarm()
    record.observe("validator-2", StatusSample(100, False, None))
    text = "\n".join(drawn(record, screen(notice="dead: validator-2"), 100))
    for part in ("0.38 → 0.82", "committed", "202", "computation", "✗ validator-2", "dead"):
        assert part in text
    for part in (
        "stale-weights",
        "cheat: caught",
        "joined",
        "epoch 12",
        "02:55",
        "dead: validator-2",
    ):
        assert part in text
    for part in ("sh /tmp/swarm/join.sh", "sh /tmp/swarm/status.sh", "it ends with version 60"):
        assert part in text


def test_a_step_without_effect_is_told_until_the_next_good_one():
    record = learned_swarm()
    plan = record.nodes["trainer-1"].plan
    warning = "step 12 used 0 of 64 sequences"
    for told in (warning, ""):
        record.observe("trainer-1", sample(status(plan, training_warning=told)))
        assert record.training_warning == told
        text = "\n".join(drawn(record, screen(), 100))
        assert (warning in text) is bool(told)


def test_thirteen_nodes_and_a_guest_fit_a_terminal_of_32_lines():
    assert len(drawn(learned_swarm(), screen(), 100)) <= 32


def rows_of(lines, name):
    return [line.strip("│ ") for line in lines if line.strip("│ ").startswith(f"{name} ")]


def test_each_node_has_a_map_of_what_is_on_its_way():
    lines = drawn(spreading_swarm(), screen(), 100, height=60)
    (title,) = (line for line in lines if "in download" in line)
    assert "version 37 in download: patch, 8 MB; 2 of 12 nodes have it" in title
    one = rows_of(lines, "inference-2")[0]  # the row of the table of nodes has a mark before it
    full, half_full, empty = (one.count(character) for character in "█▒·")
    assert one.count("│") == 1
    assert full == 2 * (full // 2)
    assert (full + half_full) / (full + half_full + empty) == pytest.approx(9 / 40, abs=0.05)
    for part in ("22 %", "400 kB/s", "trainer-1, relay-1", "15 s left"):
        assert part in one
    assert "100 %" in rows_of(lines, "relay-1")[0]
    assert rows_of(lines, "relay-1")[0].endswith("took 3 s")
    assert rows_of(lines, "validator-2")[0].endswith("waiting")
    assert rows_of(lines, "forged-proofs")[0].endswith("no index yet")
    assert not rows_of(lines, "trainer-1"), "it published the version"


def test_what_does_not_fit_is_drawn_together():
    record = spreading_swarm()
    for width in (60, 80, 120):
        whole = len(drawn(learned_swarm(), screen(), width, 99))
        for height in (whole, whole + 1, whole + 13, whole + 14, 99):
            lines = drawn(record, screen(), width, height)
            assert all(len(line) <= width for line in lines)
            assert len(lines) <= height
            several = len(rows_of(lines, "validator-3"))
            assert several == (height >= whole + 14)
            assert len(rows_of(lines, "12 nodes")) == 1 - several
    without = len(drawn(learned_swarm(), screen(), 100, 99))
    (together,) = rows_of(drawn(record, screen(), 100, without + 3), "12 nodes")
    assert together.endswith("39 %  3.6 MB/s  2 have it  no index yet")
    bar = re.search("[█▓▒░·│]+", together)[0]
    first, second = bar.split("│")
    # Two of twelve have all of it, the others the first parts of each stripe.
    assert first == second == "".join(sorted(first, key="▓▒░".index))
    assert set(first) == set("▓▒░")


def test_a_version_that_has_come_leaves_one_line():
    record = learned_swarm()
    names = [name for name in record.nodes if name != "trainer-1"]
    for number, name in enumerate(names[:-1], start=1):
        give(record, name, arrived(37, number / 2))
    text = "\n".join(drawn(record, screen(), 120, 60))
    assert "version 37 reached 11/12 nodes, half in 3.0 s; root 44 MB, peers 44 MB" in text
    give(record, names[-1], arrived(37, 7.5))
    assert ", half in 3.0 s, all in 7.5 s" in "\n".join(drawn(record, screen(), 120, 60))
    quick = arrival(38, 20, seconds=0.4)
    give(record, names[0], quick, arrived(37, 0.5))
    assert "in download" not in "\n".join(drawn(record, screen(), 120, 60))
    give(record, names[0], arrival(38, 20))
    assert "version 38 in download" in "\n".join(drawn(record, screen(), 120, 60))
    assert "in download" not in "\n".join(drawn(record, screen(stage="done"), 120))


def test_the_line_for_logs_says_the_same():
    line = progress_line(learned_swarm(), screen(), STARTED_AT + 175)
    assert line.startswith("[02:55]  learning  version 37/60  reward 0.82  certified 171")


def test_the_remaining_time_follows_the_pace_and_the_limit():
    record = learned_swarm()
    last_at = record.checkpoints[-1].created_at
    assert eta_seconds(record, screen(), last_at) == pytest.approx(23 * 4)
    slow = Screen("arithmetic", 0, 10_000, 300.0, stage="learning")
    assert eta_seconds(record, slow, STARTED_AT + 200) == pytest.approx(100)
    assert eta_seconds(record, screen(stage="starting"), last_at) is None
    assert clock_text(3725) == "62:05"


def test_a_picture_of_it_is_svg(tmp_path):
    save_picture(learned_swarm(), screen(), tmp_path / "view.svg")
    assert (tmp_path / "view.svg").read_text().startswith("<svg")


def lies(record, name, *, certified=0, rejected=0, committed=0, slashed=False):
    """Record a liar's outcomes in the status of every node."""
    liar = record.nodes[name].plan.peer_id
    counts = RolloutCounts(committed, certified, rejected)
    for node in record.nodes.values():
        members = tuple(
            replace(member, peer_id=liar, reputation="slashed" if slashed else "good")
            for member in node.status.members[:1]
        )
        workers = node.status.workers | {liar: counts}
        node.status = replace(node.status, workers=workers, members=members)
    return fate(record, record.nodes[name].plan)


@pytest.mark.parametrize(
    ("seen", "told"),
    [
        ({}, ("nothing yet", DIM)),
        ({"committed": 2}, ("2 pending", WARN)),
        ({"committed": 2, "rejected": 1}, ("caught, 1 rejected", GOOD)),
        ({"committed": 2, "rejected": 2, "slashed": True}, ("slashed, 2 rejected", GOOD)),
        ({"committed": 9, "rejected": 8, "certified": 1, "slashed": True}, ("1 certified", BAD)),
    ],
)
def test_the_fate_of_a_liar_says_whether_it_got_away_with_it(seen, told):
    assert lies(learned_swarm(), "stale-weights", **seen) == told


def test_a_swarm_without_an_end_says_so():
    forever = Screen("arithmetic", 0, 4096, math.inf, stage="learning")
    record = learned_swarm()
    text = "\n".join(drawn(record, forever, 100))
    assert "Ctrl-C drains; it runs until then" in text
    assert " left" not in text.splitlines()[0]
    assert eta_seconds(record, forever, STARTED_AT + 175) is None
    assert "version 37  " in progress_line(record, forever, STARTED_AT + 175)


@pytest.mark.parametrize("failure", ["", "relay-1 did not start"])
def test_the_summary_prints(failure):
    record = learned_swarm()
    report = build_report(
        record, run_id="ab" * 32, versions=60, wall_seconds=200, greedy_eval_last=None
    )
    console = Console(width=100, file=io.StringIO(), color_system=None)
    console.print(draw_summary(report, record, SwarmLayout(Path("t")), failure))
    text = console.file.getvalue()
    assert "0 of honest workers" in text
    assert failure in text
    gone = Console(width=100, file=io.StringIO(), color_system=None)
    gone.print(draw_summary(report, record, None, failure))
    assert "all files are removed; --keep keeps" in gone.file.getvalue()

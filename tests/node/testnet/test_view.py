import io
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from node.api.v1.answers import RolloutCounts
from node.cli.render.style import BAD, DIM, GOOD, WARN
from node.testnet.plan import SwarmLayout
from node.testnet.poll import StatusSample
from node.testnet.record import SwarmRecord
from node.testnet.report import build_report
from node.testnet.screen import STAGE_TEXT, progress_line, seconds_left
from node.testnet.summary import draw_summary
from node.testnet.view import draw, fate
from tests.node.testnet.testnet_swarms import (
    STARTED_AT,
    arrival,
    arrived,
    give,
    learned_swarm,
    sample,
    screen,
    status,
)


def drawn(record: SwarmRecord, given=None, width: int = 100, height: int = 60) -> list[str]:
    console = Console(width=width, file=io.StringIO(), color_system=None)
    view = draw(record, given or screen(), now=STARTED_AT + 175, width=width, height=height)
    console.print(view)
    return [line.strip() for line in console.file.getvalue().splitlines()]


def row(lines: list[str], name: str) -> str:
    """Return the one row of a node, or of a figure, with single spaces."""
    (found,) = (line for line in lines if line.strip("●✗◆ ").startswith(f"{name} "))
    return " ".join(found.split())


def downloading_swarm() -> SwarmRecord:
    """Return a swarm of which one node has a version, one a part, and one not even the index."""
    record = learned_swarm()
    give(record, "validator-1", arrived(37, 1.5))
    give(record, "inference-2", arrival(37, 9))
    give(record, "inference-3", arrival(37, 0, stripes=(), total_bytes=0, seconds_to_go=None))
    return record


@pytest.mark.parametrize("stage", STAGE_TEXT)
def test_it_fits_every_width_in_every_stage(stage):
    for width in (60, 80, 100, 140):
        for record in (downloading_swarm(), SwarmRecord(STARTED_AT)):
            assert all(len(line) <= width for line in drawn(record, screen(stage=stage), width))


def test_it_shows_that_nodes_generate_verify_and_train_and_where_to_look_further():
    record = learned_swarm()
    record.observe("validator-2", StatusSample(100, False, None))
    lines = drawn(record, screen(notice="dead: validator-2"))
    assert lines[0].endswith("learning  2 min 55 s, 1 min 25 s left")
    assert row(lines, "version") == "version 37 of 60"
    assert row(lines, "reward").startswith("reward 0.38 → 0.82 ▄")
    told = "202 committed, 171 certified, 160 trained on, 5 rejected (computation 4, sampling 1)"
    assert told in row(lines, "rollouts")
    assert "dead: validator-2" in lines
    assert row(lines, "relay-1") == "● relay-1 37 7 connected ready 11 MB"
    assert row(lines, "trainer-1") == "● trainer-1 36 trained version 37 ready 22 MB"
    assert row(lines, "validator-3") == "● validator-3 36 90 verified ready 55 MB"
    assert row(lines, "validator-2").startswith("✗ validator-2 37 90 verified dead")
    reason = "ready peer unreachable for 12 s 66 MB"
    assert row(lines, "inference-1") == f"● inference-1 35 57/60 certified {reason}"
    assert "57/60 certified ✗1 cheat: caught, 1 rejected" in row(lines, "stale-weights")
    assert sum("joined as inference" in line for line in lines) == 1
    assert row(lines, "web page").startswith("web page http://127.0.0.1:40001/ ")
    assert row(lines, "join") == "join sh /tmp/swarm/join.sh"
    assert row(lines, "its status") == "its status sh /tmp/swarm/status.sh"
    assert row(lines, "Ctrl-C").startswith("Ctrl-C drains; it ends with version 60")


def curve(record: SwarmRecord, **changes) -> str:
    return row(drawn(record, screen(**changes)), "reward").split()[-1]


def test_the_curve_has_a_character_for_each_version_of_the_run_and_averages_long_ones():
    assert curve(learned_swarm(versions=4)) == "▄▄▄▄" + 56 * "·"
    assert curve(learned_swarm(), seconds_max=math.inf) == curve(learned_swarm()).rstrip("·")
    whole = curve(learned_swarm(versions=400), steps=400)
    assert 60 < len(whole) < 100
    assert whole == "".join(sorted(whole))
    assert "no training step yet" in row(drawn(SwarmRecord(STARTED_AT)), "reward")


def test_nodes_of_another_run_cannot_steer_the_terminal():
    record = learned_swarm()
    node = record.nodes["relay-1"]
    (member,) = node.status.members
    hostile = replace(member, peer_id="guest", roles=("\x1b[2J[red]x",))
    record.observe("relay-1", sample(replace(node.status, members=(hostile,))))
    assert row(drawn(record), "guest") == "◆ guest 37 0/0 certified joined as �[2J[red]x"


def test_a_step_without_effect_is_told_until_the_next_good_one():
    record = learned_swarm()
    plan = record.nodes["trainer-1"].plan
    warning = "step 12 used 0 of 64 sequences"
    for told in (warning, ""):
        record.observe("trainer-1", sample(status(plan, training_warning=told)))
        assert record.training_warning == told
        assert (warning in drawn(record)) is bool(told)


def test_a_download_has_a_map_of_its_pieces():
    record = downloading_swarm()
    lines = drawn(record, width=120)
    assert "version 37 █▒····│█░··· 15 s left" in row(lines, "inference-2")
    assert "version 37 ············ no index yet" in row(lines, "inference-3")
    assert "ready 33 MB" in row(lines, "validator-1")
    give(record, "inference-2", arrival(38, 20, seconds=0.4))
    assert "version 38" not in row(drawn(record), "inference-2")


def test_honest_nodes_that_run_are_left_out_of_a_low_terminal():
    record = learned_swarm()
    record.observe("validator-2", StatusSample(100, False, None))
    whole = drawn(record)
    assert drawn(record, height=len(whole)) == whole
    lines = drawn(record, height=len(whole) - 1)
    assert len(lines) == len(whole) - 1
    assert [line for line in whole if line not in lines] == [
        line for line in whole if "inference-2" in line or "inference-3" in line
    ]
    assert "2 more" in lines
    low = drawn(record, height=5)
    assert "7 more" in low
    kept = [line for line in whole if re.search("cheat:|validator-2|joined as|^web page", line)]
    assert [line for line in kept if line not in low] == []


def test_a_version_that_has_come_leaves_one_line():
    record = learned_swarm()
    names = [name for name in record.nodes if name != "trainer-1"]
    for number, name in enumerate(names[:-1], start=1):
        give(record, name, arrived(37, number / 2))
    told = "version 37 reached 11 of 12 nodes, half in 3.0 s: 44 MB by its trainer, 44 MB by peers"
    assert told in row(drawn(record, width=140), "weights")
    give(record, names[-1], arrived(37, 7.5))
    assert ", half in 3.0 s, all in 7.5 s" in row(drawn(record, width=140), "weights")


def test_the_line_for_logs_says_the_same():
    line = progress_line(learned_swarm(), screen(), STARTED_AT + 175)
    assert line.startswith("[ 175 s]  learning  version 37/60  reward 0.82  certified 171")


def test_the_remaining_time_follows_the_pace_and_the_limit():
    record = learned_swarm()
    last_at = record.checkpoints[-1].created_at
    assert seconds_left(record, screen(), last_at) == pytest.approx(23 * 4)
    assert seconds_left(record, screen(steps=10_000), STARTED_AT + 200) == pytest.approx(100)
    assert seconds_left(record, screen(stage="starting"), last_at) is None


def test_a_swarm_without_an_end_says_so():
    record, forever = learned_swarm(), screen(seconds_max=math.inf)
    lines = drawn(record, forever)
    assert row(lines, "Ctrl-C") == "Ctrl-C drains; it runs until then"
    assert row(lines, "version") == "version 37"
    assert " left" not in lines[0]
    assert "version 37  " in progress_line(record, forever, STARTED_AT + 175)


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

import re
from dataclasses import replace

import pytest
from rich.console import Console

from node.api.contributors import OwnWork
from node.api.metrics import NodeMetrics
from node.api.status import LoopStatus
from node.api.v1.answers import RolloutCounts
from node.api.why import Why
from node.cli.render.status import STEP_TEXTS, peers_view, plain, short_peer, status_view, why_view
from protocol.rollout.evaluation import EvaluationPoint
from roles.runtime.shadow_progress import ShadowProgress
from roles.runtime.training_steps import STATISTICS
from tests.node.api.status_examples import ARRIVING, EXPLAINED, PEERS, STATUS, STEP


def drawn(view, width=100):
    console = Console(width=width, highlight=False, force_terminal=False)
    with console.capture() as capture:
        console.print(view)
    return [line.rstrip() for line in capture.get().splitlines()]


def row(lines, first):
    return next(line for line in lines if line.split()[:1] == [first])


def test_status_at_a_glance():
    lines = drawn(status_view(STATUS, STATUS.started_at + 4000))
    assert lines[0] == "inference  ● ready"
    assert row(lines, "up").split(maxsplit=1)[1] == "1 h 6 min"
    assert "7 members (2 inference, 3 validator, 1 trainer, 1 relay)" in row(lines, "swarm")
    assert "3 members (6 seats, era 2), final page 3 s ago, no votes" in row(lines, "council")
    assert row(lines, "leader").endswith("term 3, live")
    assert row(lines, "policy").endswith("version 41, 1 behind the newest; final 39")
    assert "0.840  ▁" in row(lines, "reward")
    assert "since start: sent 3.1 GB, received 1.25 GB" in row(lines, "traffic")
    assert any(line.split()[:6] == ["swarm", "860", "812", "12", "4", "790"] for line in lines)
    yours = row(lines, "yours").split(maxsplit=1)[1]
    assert yours.startswith("128 certified, 1.9 M tokens, 3.1 % of the run, rank 7 of 41; 12 wait")
    assert not any(line.split()[:1] == ["name"] for line in lines)
    assert lines[-1] == "prime-node why explains this node's failed rollouts."


def test_status_counts_the_slashed():
    lines = drawn(status_view(replace(STATUS, slashed=1), 2e9))
    assert "7 connected, 1 slashed" in " ".join(" ".join(lines).split())


def test_status_names_the_run_that_this_one_succeeds():
    succeeds = "run 12ab… at page 34cd… (epoch 17), version 2"
    lines = drawn(status_view(replace(STATUS, succeeds=succeeds), STATUS.started_at))
    assert row(lines, "succeeds").split(maxsplit=1)[1] == succeeds
    assert not any("succeeds" in line for line in drawn(status_view(STATUS, STATUS.started_at)))


def arriving_lines(lines):
    """Return the line with the map, and the lines below it."""
    (at,) = (number for number, line in enumerate(lines) if line.startswith("  version 42 "))
    below = []
    while lines[at + 1 + len(below)].startswith("    "):
        below.append(lines[at + 1 + len(below)].strip())
    return lines[at], " ".join(below)


@pytest.mark.parametrize("width", [60, 80, 100, 120])
def test_a_version_on_its_way_is_seen(width):
    lines = drawn(status_view(STATUS, STATUS.started_at + 4000), width)
    assert max(map(len, lines)) <= width
    line, below = arriving_lines(lines)
    assert line.endswith("  37 %  12.3 MB/s  50 s left")
    bar = line.split()[2]
    told = ("version 42", "37 %  12.3 MB/s  50 s left")
    assert len(bar) == width - 2 - sum(map(len, told)) - 4
    stripes = bar.split("│")
    assert len(stripes) == (4 if width > 60 else 1)
    if width > 60:
        full, quarter, middle, none = stripes
        assert set(full) == {"█"} and set(none) == {"·"}
        assert quarter.startswith("█") and quarter.endswith("·")
        assert middle[0] == middle[-1] == "·" and set(middle) > {"·"}
    assert below.startswith("patch, saves 61 GB: 370 MB of 988 MB from 12D3KooW…SUKPH5 8.1 MB/s ")
    assert "(280 MB by HTTP, stripes 0 2), 12D3KooW…2NASuq 4.2 MB/s (60 MB by stream" in below
    assert below.endswith("stripe 1), 12D3KooW…8L8BQw 0 B/s (31 MB by HTTP and stream)")
    text = " ".join(" ".join(lines).split())
    assert "sending 9.4 MB/s to 2 peers: 12D3KooW…3ANaba 9 MB/s (700 MB by stream)," in text
    assert "203.0.113.7 400 kB/s (1 MB by HTTP)" in text
    assert not any(line.startswith("  version 41") for line in lines)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"stripes": (), "total_bytes": 0, "bytes_here": 0, "sources": ()}, "0 %.*no index yet"),
        ({"seconds_to_go": None}, "37 %.*stalled"),
        ({"bytes_here": 988_000_000, "seconds_to_go": 0.0}, "100 %.*complete"),
        ({"bytes_here": 987_999_999, "seconds_to_go": 0.1}, "99 %.*0 s left"),
    ],
)
def test_what_is_waited_for_is_told(changes, told):
    lines = drawn(status_view(replace(STATUS, arrivals=(replace(ARRIVING, **changes),)), 2e9))
    assert re.search(told, arriving_lines(lines)[0])


def test_the_newest_step_of_a_trainer_is_told():
    lines = drawn(status_view(replace(STATUS, training=STEP), 2e9))
    at = lines.index(row(lines, "training"))
    told = [line.strip() for line in lines[at : at + 6]]
    assert told == [
        (
            "training      step 42: reward 0.840 ± 0.366, 48 of 64 sequences used, 75 % of groups "
            "informative"
        ),
        "entropy 0.412 nats, KL 0.00081 nats, gradient norm 1.25, clip 0.2 % low, 0.4 % high",
        "answers 14.5 tokens, 3 % truncated, staleness 1.2 versions, at most 2",
        "mismatch 0.034 nats, 99 % below 0.19, 1.8 % clipped, engines 0.031, 0.18, 1.3 %",
        "updates 1 at learning rate 1e-05, loss -0.013",
        "118 tokens/s, 31.5 s, idle 4.2 s, ranks: 2, memory at most 2.14 GB",
    ]
    named = {name for line in STEP_TEXTS for _, names in line for name in names}
    assert named == set(STATISTICS)
    assert not any(line.split()[:1] == ["training"] for line in drawn(status_view(STATUS, 2e9)))


def test_the_first_and_the_newest_evaluated_version_are_told():
    points = [
        EvaluationPoint(version, 16, 128, reward, reward - 0.1, reward + 0.1, solved, 0.1, 0.9)
        for version, reward, solved in ((0, 0.2, 0.19), (5, 0.4, 0.4), (10, 0.75, 0.74))
    ]
    for shown in (points, points[:1]):
        lines = drawn(status_view(replace(STATUS, evaluation=tuple(shown)), 2e9))
        at = lines.index(row(lines, "held-out"))
        assert lines[at].split(maxsplit=2)[2].strip() == (
            "version 0: 0.200 (0.100 to 0.300), 19 % of 128 answers solved"
        )
    lines = drawn(status_view(replace(STATUS, evaluation=tuple(points)), 2e9))
    newest = "version 10: 0.750 (0.650 to 0.850), 74 % of 128 answers solved"
    assert lines[lines.index(row(lines, "held-out")) + 1].strip() == newest
    assert not any("held-out" in line for line in drawn(status_view(STATUS, 2e9)))


def test_a_step_without_effect_is_a_warning():
    step = replace(STEP, sequences_used=0, updates=0, entropy_nats=None, reward_mean=0.0)
    status = replace(STATUS, training=step, training_warning=step.warning)
    text = " ".join(" ".join(drawn(status_view(status, 2e9))).split())
    assert step.warning in text
    assert "entropy" not in text


def test_a_shadow_tells_how_its_steps_compare():
    shadow = ShadowProgress(version=41, confirmed=40, differing=1, is_active=True)
    status = replace(STATUS, shadow=shadow)
    lines = drawn(status_view(status, 2e9))
    assert row(lines, "shadow").split(maxsplit=1)[1].strip() == (
        "shadowing, in step with version 41; 40 versions confirmed, 1 different"
    )
    shadow.note_ranks(42, 8, 1)
    lines = drawn(status_view(replace(STATUS, shadow=shadow), 2e9))
    reason = "cannot compare: 8 ranks computed version 42, this node has 1; 40 versions"
    assert reason in row(lines, "shadow")
    idle = replace(shadow, is_active=False, warning="version 12 differs from the step")
    lines = drawn(status_view(replace(STATUS, shadow=idle), 2e9))
    assert row(lines, "shadow").split(maxsplit=1)[1].strip() == "40 versions confirmed, 1 different"
    assert "version 12 differs from the step" in " ".join(" ".join(lines).split())
    text = NodeMetrics(lambda: status).exposition().decode()
    for line in (
        "shadow_version 41.0",
        "shadow_confirmed_total 40.0",
        "shadow_differing_total 1.0",
    ):
        assert f"prime_node_{line}" in text
    assert not any(line.split()[:1] == ["shadow"] for line in drawn(status_view(STATUS, 2e9)))


def test_nothing_on_its_way_takes_no_line():
    quiet = replace(STATUS, arrivals=STATUS.arrivals[1:], receivers=())
    text = "\n".join(drawn(status_view(quiet, 2e9)))
    assert "MB/s" not in text and "sending" not in text


def test_many_sources_are_counted():
    many = ARRIVING.sources[:1] * 9
    lines = drawn(status_view(replace(STATUS, arrivals=(replace(ARRIVING, sources=many),)), 2e9))
    assert arriving_lines(lines)[1].endswith(" and 5 more")


def test_status_tells_when_the_loop_was_held_up():
    held_up = LoopStatus((9, 0, 0, 0, 0, 0, 0, 0, 1), 3.5, 3.25, 0.75)
    lines = drawn(status_view(replace(STATUS, loop=held_up), 2e9))
    assert row(lines, "event").split(maxsplit=2)[2].strip() == (
        "delay at most 3.2 s; without waits for a CPU core 0.8 s"
    )
    hardly = replace(held_up, delay_seconds_max=0.4)
    lines = drawn(status_view(replace(STATUS, loop=hardly), 2e9))
    assert not any(line.split()[:1] == ["event"] for line in lines)


def test_status_of_a_node_that_has_just_started():
    young = replace(
        STATUS,
        roles=("relay",),
        state="joining",
        reason="no bootstrap peer answers; trying again",
        members=(),
        addresses=(),
        policy_version=-1,
        policy_version_newest=-1,
        rewards=(),
        rollouts=RolloutCounts(),
        yours=OwnWork(),
    )
    lines = drawn(status_view(young, young.started_at))
    assert lines[0] == "relay  ● joining  no bootstrap peer answers; trying again"
    assert "none published yet" in row(lines, "policy")
    assert "no training step yet" in row(lines, "reward")
    assert not any(line.split()[:1] == ["yours"] for line in lines)


def test_a_policy_that_has_not_arrived():
    lines = drawn(status_view(replace(STATUS, policy_version=-1), 0.0))
    assert "version none; the newest is 42; final 39" in row(lines, "policy")


def test_versions_that_have_come_and_cannot_be_taken_are_told():
    """A trainer has published them, but the outcome of their batches is unknown here."""
    waiting = replace(STATUS, tables={**STATUS.tables, "versions_waiting": 3})
    told = row(drawn(status_view(waiting, 0.0)), "policy")
    assert told.endswith("1 behind the newest; final 39; 3 more pending")


@pytest.mark.parametrize(
    "view", [status_view(STATUS, 2e9), peers_view(STATUS), why_view(EXPLAINED)]
)
def test_views_fit_into_a_hundred_columns_unabridged(view):
    lines = drawn(view)
    assert max(map(len, lines)) <= 100
    assert not any(line.endswith("…") for line in lines)


def test_peers_are_listed_by_role():
    lines = drawn(peers_view(STATUS))
    assert lines[0] == "7 members, 7 connected to this node"
    roles = [line.replace("(you)", "").split()[1] for line in lines[3:10]]
    assert roles == ["inference"] * 2 + ["validator"] * 3 + ["trainer", "relay"]
    assert sum("(you)" in line for line in lines) == 1
    assert [line.split()[-2] for line in lines[3:10]][-2:] == ["15151515", "-"]
    alone = replace(STATUS, members=(), members_count=0, peers_connected=0, gossip_peers=())
    assert drawn(peers_view(alone)) == ["0 members, 0 connected to this node"]


def test_who_gossips_is_listed_with_its_score_on_the_roster_or_not():
    lines = [line.split() for line in drawn(peers_view(STATUS))[11:]]
    assert [line[0] for line in lines[1:]] == [short_peer(PEERS[n]) for n in (0, 1, 2, 3, 4, 5, 7)]
    assert lines[1][1:] == ["1.25", "good", "2", "0", "0", "0", "0", "0"]
    assert lines[6][1:] == ["-11.00", "no-gossip", "0", "1", "0", "1", "2", "1"]
    assert lines[7][1:] == ["-91.00", "graylisted", "0", "0", "0.5", "3", "0", "1"]


def test_why_shows_reason_what_was_measured_and_evidence():
    lines = drawn(why_view(EXPLAINED))
    assert lines[0] == "● paused  2 batches wait for the trainer"
    text = " ".join(" ".join(lines).split())
    assert "ab12ab12ab12ab12 version 40, slot 3, epoch 398 rejected: computation" in text
    wide = " ".join(" ".join(drawn(why_view(EXPLAINED), 160)).split())
    assert "mismatches max 61, at most 4" in wide
    assert "verdict 0101010101010101" in text
    assert "expired: no committee decided in time" in text
    assert f"Version 41 of {PEERS[1]} was trained on rejected rollouts:" in text
    assert "rollouts: ab12ab12ab12ab12, 0c0c0c0c0c0c0c0c" in text


def test_why_of_a_node_without_failures():
    lines = drawn(why_view(Why("ready", "", False, (), ())))
    assert lines == ["● ready", "No rollout of this node was rejected or expired."]
    lines = drawn(why_view(replace(EXPLAINED.about("0000"), slashed=True), "ab12"))
    assert lines[1].startswith("This node is slashed")
    assert lines[2] == "No rollout of this node was rejected or expired (ab12)."


def test_why_shows_the_newest_of_many():
    many = replace(EXPLAINED, rollouts=EXPLAINED.rollouts * 50)
    lines = drawn(why_view(many))
    assert lines[1] == "80 older rollouts hidden; name one, or use --json."


@pytest.mark.parametrize(
    ("which", "count"), [("AB12", 1), ("computation", 1), ("expired", 1), ("f", 0), ("", 2)]
)
def test_rollouts_are_named_by_digest_reason_or_state(which, count):
    assert len(EXPLAINED.about(which).rollouts) == count


@pytest.mark.parametrize(
    ("which", "count"), [("AB12", 1), (PEERS[1], 1), (PEERS[2], 0), ("computation", 0)]
)
def test_a_version_is_named_by_its_trainer_or_a_commit(which, count):
    assert len(EXPLAINED.about(which).trained_on_rejected) == count


@pytest.mark.parametrize(("name", "shown"), [("שרה [b]", "שרה [b]"), ("M" * 32, "M" * 22 + "…")])
def test_a_name_stands_alone_below_its_key(name, shown):
    named = replace(STATUS.members[6], name=name)
    status = replace(STATUS, name=name, members=(*STATUS.members[:6], named))
    lines = drawn(peers_view(status))
    assert max(map(len, lines)) <= 100
    (at,) = (number for number, line in enumerate(lines) if line.strip() == shown)
    assert lines[at - 1].split()[:2] == [short_peer(PEERS[6]), "(you)"]
    assert lines[at - 1].endswith("65656565   trusted")
    assert row(drawn(status_view(status, 2e9)), "name").split(maxsplit=1)[1] == name


def test_other_nodes_cannot_steer_the_terminal():
    hostile = "\x1b[2J\x9b31m[red]x"
    member = replace(STATUS.members[0], software=hostile, roles=("relay", hostile), name=hostile)
    text = "\n".join(drawn(peers_view(replace(STATUS, members=(member,)))))
    assert "\x1b" not in text
    assert "\x9b" not in text
    assert text.count("[red]x") == 3
    assert plain("a\tb\n", 3) == "a�b"


def test_short_names_keep_the_random_end():
    assert short_peer("12D3KooWK98A5qKRAA9qZccvoJLvcLu68PCFZLNfdd81iQLvHj6W") == "12D3KooW…LvHj6W"
    assert short_peer("me") == "me"


def test_status_tells_how_soon_a_version_was_in_use():
    lines = drawn(status_view(STATUS, 2e9))
    (line,) = (line for line in lines if line.split()[:2] == ["policy", "swap"])
    assert line.split(maxsplit=2)[2].strip() == (
        "version 41: weights 2.2 s, swapped 7.5 s, first token 7.8 s (median 6.0 s)"
    )
    lines = drawn(status_view(replace(STATUS, policy_swap=None), 2e9))
    assert not any(line.split()[:2] == ["policy", "swap"] for line in lines)


def test_why_tells_nothing_twice():
    (rejected, _) = EXPLAINED.rollouts
    detail = "exponent_mismatches_max 61, honest up to 4"
    verdicts = tuple(replace(one, detail=detail) for one in rejected.verdicts)
    view = why_view(replace(EXPLAINED, rollouts=(replace(rejected, verdicts=verdicts),)))
    text = " ".join(" ".join(drawn(view, 200)).split())
    assert text.count("computation") == 1, "in the line of the rollout"
    assert text.count("honest up to 4") == 2, "of the two that reject"
    assert text.count("exponent mismatches max") == 1, "of the one that accepts"


def test_a_fork_is_named_in_the_same_words_everywhere():
    fork = "worker P signed two rollouts for one slot: its reputation has ended, for the rest"
    for view in (
        status_view(replace(STATUS, forks=(fork,)), 2e9),
        why_view(replace(EXPLAINED, forks=(fork,))),
    ):
        assert fork in drawn(view)


def test_counts_say_what_they_count_and_since_when():
    lines = drawn(status_view(STATUS, 2e9))
    assert "Commits known here; old ones are forgotten." in " ".join(lines)

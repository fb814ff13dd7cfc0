"""Scenario files: their meaning, and one-line errors that name the key."""

import math
from pathlib import Path
from statistics import fmean

import pytest
from pydantic import TypeAdapter

from protocol.core.rng import Rng
from simulations.cluster.churn import draw_seconds
from simulations.scenario.plans import Duration
from simulations.scenario.scenario import (
    ScenarioError,
    load_scenario,
    parse_scenario,
    scenario_names,
)

ASKED_FOR = {
    "quiet-20",
    "churn-100",
    "churn-1000",
    "stress-18",
    "shock-50",
    "partition-heal",
    "flash-crowd",
    "byzantine-inference",
    "byzantine-validators",
    "slow-trainer",
    "trainer-dies",
    "nat-heavy",
    "clock-skew",
    "bad-relays",
}

HEAD = 'name = "x"\ndescription = "y"\nminutes = 1\n'


def test_every_packaged_scenario_can_be_used() -> None:
    assert set(scenario_names()) >= ASKED_FOR
    for name in scenario_names():
        scenario = load_scenario(name)
        assert scenario.name == name
        assert len(scenario.description) <= 100
        assert scenario.recipe().environment.name


def test_names_of_a_scenario_tell_its_size() -> None:
    for name in ("quiet-20", "quiet-100", "churn-100", "churn-1000"):
        assert load_scenario(name).nodes.total == int(name.rpartition("-")[2])


def test_an_extension_says_only_what_differs(tmp_path: Path) -> None:
    base = load_scenario("quiet-20")
    path = tmp_path / "mine.toml"
    path.write_text(
        'extends = "quiet-20"\nname = "mine"\ndescription = "y"\n[nodes]\ninference = 5\n'
    )
    (tmp_path / "further.toml").write_text('extends = "mine.toml"\n[nodes]\nrelay = 3\n')
    mine, further = load_scenario(str(path)), load_scenario(str(tmp_path / "further.toml"))
    assert mine.nodes == base.nodes.model_copy(update={"inference": 5})
    assert mine.minutes == base.minutes
    assert further.nodes == mine.nodes.model_copy(update={"relay": 3})
    assert further.name == "mine"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("colour = 1", "unknown key 'colour'"),
        ("[nodes]\ntrainers = 2", "unknown key 'nodes.trainers'"),
        ("[protocol.grpo]\nalpha = 1", "unknown key 'protocol.grpo.alpha'"),
        ("[protocol.committee]\nsize = -1", "protocol.committee.size"),
        ("[protocol.admission]\nwork_bits = 9", "protocol.admission.work_bits: at most 8"),
        ('extends = "quiet-21"', "unknown scenario 'quiet-21'"),
        ("extends = 3", "extends: a scenario's name"),
        ('[[faults]]\nkind = "flood"\nminute = 1', "faults.0"),
        ('[[churn]]\nsession = { kind = "weibull", shape = 0, scale_seconds = 1 }', "shape"),
        ('[[adversaries]]\nrole = "relay"\nbehaviour = "polite"\ncount = 1', "'polite'"),
        ('[[adversaries]]\nrole = "relay"\nbehaviour = "silent"\ncount = 1', "'silent' is for"),
        ("minutes", "not TOML"),
    ],
)
def test_a_mistake_is_one_line_that_names_the_key(text: str, message: str) -> None:
    head = "" if text == "minutes" else HEAD
    with pytest.raises(ScenarioError) as caught:
        parse_scenario(f"{head}{text}\n")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_scenario_that_extends_itself_is_a_mistake(tmp_path: Path) -> None:
    path = tmp_path / "loop.toml"
    path.write_text('extends = "loop.toml"\n')
    with pytest.raises(ScenarioError, match="deep"):
        load_scenario(str(path))


# Durations


def draws(duration: object, count: int = 20_000) -> list[float]:
    rng = Rng(b"durations")
    plan = TypeAdapter[Duration](Duration).validate_python(duration)
    return [draw_seconds(plan, rng) for _ in range(count)]


def test_exponential_durations_are_memoryless() -> None:
    seconds = draws({"kind": "exponential", "mean_seconds": 300})
    assert fmean(seconds) == pytest.approx(300, rel=0.03)
    longer = [value - 200 for value in seconds if value > 200]
    assert fmean(longer) == pytest.approx(300, rel=0.05)


def test_weibull_durations_have_their_mean_and_a_heavy_tail() -> None:
    seconds = draws({"kind": "weibull", "shape": 0.6, "scale_seconds": 100})
    assert fmean(seconds) == pytest.approx(100 * math.gamma(1 + 1 / 0.6), rel=0.05)
    median = sorted(seconds)[len(seconds) // 2]
    assert median == pytest.approx(100 * math.log(2) ** (1 / 0.6), rel=0.05)


def test_recorded_durations_come_from_a_file_beside_the_scenario(tmp_path: Path) -> None:
    (tmp_path / "sessions.csv").write_text("12.5,a node\n70\n300,x\n")
    path = tmp_path / "mine.toml"
    path.write_text(
        HEAD
        + '[[churn]]\nsession = { kind = "recorded", file = "sessions.csv" }\n'
        + 'downtime = { kind = "recorded", seconds = [5] }\n'
    )
    (churn,) = load_scenario(str(path)).churn
    rng = Rng(b"durations")
    assert {draw_seconds(churn.session, rng) for _ in range(200)} == {12.5, 70.0, 300.0}
    assert draw_seconds(churn.downtime, rng) == 5.0


@pytest.mark.parametrize("content", [None, "", "twelve\n", "-3\n", "nan\n"])
def test_a_bad_recording_is_a_mistake_of_the_scenario(content: str | None, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "sessions.csv").write_text(content)
    path = tmp_path / "mine.toml"
    path.write_text(
        HEAD
        + '[[churn]]\nsession = { kind = "recorded", file = "sessions.csv" }\n'
        + 'downtime = { kind = "exponential", mean_seconds = 5 }\n'
    )
    with pytest.raises(ScenarioError, match=r"churn\.0\.session"):
        load_scenario(str(path))

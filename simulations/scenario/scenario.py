"""A scenario: a swarm, its world, and its faults, as one TOML file.

Unknown keys are errors that name the key. A run is a function of scenario and seed. A file with
``extends = "quiet-100"`` holds only its differences from that one: tables key by key, lists as a
whole.
"""

import math
import tomllib
from importlib import resources
from itertools import combinations
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, model_validator

from protocol.run.recipe import EpochSection, EvaluationSection, Recipe
from protocol.run.toml import ManifestError, first_error, load_recipe
from simulations.scenario.plans import (
    ALL_ROLES,
    Adversaries,
    Churn,
    FaultPlan,
    Mbits,
    RoleName,
    ScenarioModel,
    Seconds,
    Share,
)

RECIPE = "recipe.toml"
"""The recipe of simulated runs, beside the scenarios; ``[protocol]`` overrides parts of it."""

ADDED = {
    "evaluation": tuple(EvaluationSection.model_fields),
    "epochs": tuple(EpochSection.model_fields),
    "grpo": ("outer",),
}
"""Sections that miss keys, or are missing, in the recipe of simulated runs, with all keys."""

EXTENSIONS_MAX = 4

BYTES_PER_MBIT = 125_000

WORK_BITS_MAX = 8
"""Maximum of admission work: each key costs ``2**bits`` hashes of 1 ms, a quarter of a second of a
core. A recipe's 16 bits would take minutes per key."""


class ScenarioError(ValueError):
    """Invalid scenario; the message is one line and names the key."""


class Nodes(ScenarioModel):
    """Number of nodes of each role at the start."""

    relay: Annotated[int, Field(ge=1, le=1000)] = 2
    trainer: Annotated[int, Field(ge=1, le=16)] = 1
    validator: Annotated[int, Field(ge=1, le=1000)] = 4
    inference: Annotated[int, Field(ge=0, le=20_000)] = 13
    start_seconds: Seconds = 10.0
    """All have started by then; relays are the first, as bootstrap peers."""
    bootstrap_peers: Annotated[int, Field(ge=1, le=16)] = 3
    """Number of relay addresses that a node starts with."""
    workers_validate: bool = False
    """True if workers also take the role validator: they act in it while they have seats."""

    @property
    def total(self) -> int:
        """Number of nodes."""
        return self.relay + self.trainer + self.validator + self.inference

    def count(self, role: RoleName) -> int:
        """Return the number of nodes with a role."""
        return int(getattr(self, role))


class LineClass(ScenarioModel):
    """An access line and the share of nodes that have it."""

    name: str
    share: Share
    upload_mbit: Mbits
    download_mbit: Mbits
    nat_share: Share = 0.0
    """Share of these nodes behind NAT, which accept no dials."""
    roles: tuple[RoleName, ...] = ALL_ROLES


class Compute(ScenarioModel):
    """Speed of a machine."""

    generate_tokens_per_second: Annotated[float, Field(gt=0)] = 1.0
    """With one rollout at a time."""
    rollouts_at_once: Annotated[int, Field(ge=1, le=1024)] = 4
    """Concurrent rollouts up to which throughput grows; above it they share it."""
    check_tokens_per_second: Annotated[float, Field(gt=0)] = 1.0
    train_tokens_per_second: Annotated[float, Field(gt=0)] = 1.0
    load_seconds: Seconds = 1.0
    weights_bytes_per_second: Annotated[float, Field(gt=0)] | None = None
    """Rate of weights that are written, hashed, encoded or decoded; None: no duration."""

    def weights_seconds(self, weights_bytes: float) -> float:
        """Return the seconds of one pass over so many bytes of weights."""
        rate = self.weights_bytes_per_second
        return 0.0 if rate is None else weights_bytes / rate

    def generation_rate(self, rollouts: int) -> float:
        """Return tokens per second at this concurrency: one rollout's rate times its square root.

        A guess. A device far from full gains more, one limited by its memory less.
        """
        return self.generate_tokens_per_second * math.sqrt(min(rollouts, self.rollouts_at_once))


class ComputeClass(Compute):
    """A machine and the share of nodes of a role that have it."""

    name: str
    share: Share
    roles: tuple[RoleName, ...]

    def faster_generation(self, times: float) -> "ComputeClass":
        """Return the same machine with faster generation."""
        rate = self.generate_tokens_per_second * times
        return self.model_copy(update={"generate_tokens_per_second": rate})


REGIONS = {"eu": 0.4, "us": 0.4, "asia": 0.2}
ROUND_TRIP_MS = {"eu-us": 90.0, "asia-eu": 180.0, "asia-us": 150.0}
"""Rounded from public cloud ping tables."""


class NetworkSection(ScenarioModel):
    """Distances and quality of the network; round trips in milliseconds between regions."""

    regions: dict[str, Share] = Field(default_factory=REGIONS.copy)
    round_trip_ms: dict[str, Annotated[float, Field(gt=0)]] = Field(
        default_factory=ROUND_TRIP_MS.copy
    )
    """Keys are two regions in alphabetical order."""
    same_region_ms: Annotated[float, Field(gt=0)] = 20.0
    jitter: Share = 0.1
    loss: Annotated[float, Field(ge=0, le=0.5)] = 0.0

    @model_validator(mode="after")
    def _check(self) -> Self:
        for one, other in combinations(sorted(self.regions), 2):
            if f"{one}-{other}" not in self.round_trip_ms:
                raise ValueError(f"round_trip_ms lacks {one}-{other}")
        return self

    def round_trip_seconds(self, one: str, other: str) -> float:
        """Return the mean round trip between two regions."""
        if one == other:
            return self.same_region_ms / 1000
        return self.round_trip_ms["-".join(sorted((one, other)))] / 1000

    @property
    def mean_round_trip_seconds(self) -> float:
        """Mean of two machines drawn by the shares of their regions."""
        total = sum(self.regions.values())
        return sum(
            share * others * self.round_trip_seconds(one, other)
            for one, share in self.regions.items()
            for other, others in self.regions.items()
        ) / (total * total)


class DirectoryQuality(ScenarioModel):
    """Faults of the modelled DHT."""

    delay_seconds: Seconds = 1.0
    """Time from publication to visibility."""
    lookup_seconds: Seconds = 0.5
    """Mean duration of a call."""
    missing: Share = 0.05
    """Share of the records that a look-up misses."""
    failing: Share = 0.02
    """Share of the calls that fail."""


class Workload(ScenarioModel):
    """Sizes of data and computations."""

    weights_bytes: Annotated[int, Field(ge=4096)] = 8_000_000
    patch_share: Share = 0.0
    """Size of a patch against the version before, as a share of the weights; 0: no patches."""
    state_bytes: Annotated[int, Field(ge=0)] = 0
    """Trainer state written with every version: it takes time and no room."""
    tokens_mean: Annotated[int, Field(ge=1)] = 12
    """Mean tokens of a sequence; lengths are uniform up to twice that, within the recipe's
    limit."""
    rounding: Literal["", "rounding-bf16"] = ""
    """Recording of rounding errors of honest engines (``simulations.ports.rounding``), or none."""
    skill: Share = 0.3
    """Probability of a right answer with the first policy."""
    learning_rate: Share = 0.03
    """Share of the remaining skill that a step with fully informative groups teaches."""


DATACENTRE: tuple[RoleName, ...] = ("relay", "trainer", "validator")

LINES = (
    LineClass(name="datacentre", share=1, upload_mbit=500, download_mbit=1000, roles=DATACENTRE),
    LineClass(name="fibre", share=0.5, upload_mbit=110, download_mbit=500, roles=("inference",)),
    LineClass(
        name="cable",
        share=0.5,
        upload_mbit=20,
        download_mbit=200,
        nat_share=0.5,
        roles=("inference",),
    ),
)
"""110 up and 500 down is a contributor's line in arXiv 2603.08163; the others are guesses."""

COMPUTE = (
    ComputeClass(name="large", share=0.3, roles=("inference",), generate_tokens_per_second=10),
    ComputeClass(name="small", share=0.7, roles=("inference",), generate_tokens_per_second=5),
    ComputeClass(name="prefill", share=1, roles=("validator",), check_tokens_per_second=200),
    ComputeClass(name="learner", share=1, roles=("trainer",), train_tokens_per_second=60),
)
"""Guesses: a token here stands for many, so that a rollout takes tens of seconds.

The workers of ``quiet-20`` make a quarter more than its trainer can learn from."""


class Scenario(ScenarioModel):
    """One file of ``simulations/scenarios``."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]*$")]
    description: str
    minutes: Annotated[float, Field(gt=0, le=100_000)]
    signatures: Literal["keyed", "ed25519"] = "keyed"
    sample_seconds: Annotated[float, Field(gt=0)] = 5.0
    skew_seconds_max: Annotated[float, Field(ge=0, le=3600)] = 0.0
    """Maximum clock offset, either way."""
    upload_limit_share: Share = 8 / 9
    """Share of its line that a daemon may use, as an operator would set it. Less ``PAYLOAD_SHARE``
    for headers, four fifths go to other nodes."""
    nodes: Nodes = Nodes()
    lines: tuple[LineClass, ...] = LINES
    compute: tuple[ComputeClass, ...] = COMPUTE
    network: NetworkSection = NetworkSection()
    directory: DirectoryQuality = DirectoryQuality()
    workload: Workload = Workload()
    protocol: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """Overrides of the recipe, section by section."""
    churn: tuple[Churn, ...] = ()
    faults: tuple[FaultPlan, ...] = ()
    adversaries: tuple[Adversaries, ...] = ()

    @model_validator(mode="after")
    def _check(self) -> Self:
        for role in ALL_ROLES:
            if not any(role in item.roles for item in self.lines):
                raise ValueError(f"lines has no class for {role}")
            if role != "relay" and not any(role in item.roles for item in self.compute):
                raise ValueError(f"compute has no class for {role}")
        return self

    @property
    def seconds(self) -> float:
        """The length of a run."""
        return self.minutes * 60

    @property
    def attack_seconds(self) -> tuple[float, float] | None:
        """Start and end of timed adversaries, in seconds; None without such."""
        timed = [plan for plan in self.adversaries if plan.timed]
        if not timed:
            return None
        ends = (self.minutes if plan.until_minute is None else plan.until_minute for plan in timed)
        return 60 * min(plan.from_minute for plan in timed), 60 * max(ends)

    def recipe(self) -> Recipe:
        """Return the recipe with this scenario's overrides; raises ``ScenarioError``."""
        values = load_recipe(_packaged(RECIPE)).model_dump()
        values = {section: {} for section in ADDED.keys() & self.protocol.keys()} | values
        for section, changes in self.protocol.items():
            if not isinstance(values.get(section), dict):
                raise ScenarioError(f"unknown key 'protocol.{section}'")
            for key, value in changes.items():
                if key not in values[section] and key not in ADDED.get(section, ()):
                    raise ScenarioError(f"unknown key 'protocol.{section}.{key}'")
                values[section][key] = tuple(value) if isinstance(value, list) else value
        try:
            recipe = Recipe.model_validate(values)
        except ValidationError as error:
            raise ScenarioError(f"protocol.{first_error(error, 'scenario')}") from None
        if recipe.admission.work_bits > WORK_BITS_MAX:
            reason = f"at most {WORK_BITS_MAX}: a simulation really does the work of every key"
            raise ScenarioError(f"protocol.admission.work_bits: {reason}")
        return recipe


def load_scenario(name: str) -> Scenario:
    """Return a packaged scenario by name, or one from a path that ends in ``.toml``."""
    return parse_scenario(*_read(name, Path()))


def _read(name: str, folder: Path) -> tuple[str, Path]:
    """Return the text of a scenario and the folder of its relative file names."""
    if name.endswith(".toml"):
        path = folder / name
        return path.read_text(encoding="utf-8-sig"), path.parent
    if name not in scenario_names():
        known = ", ".join(scenario_names())
        raise ScenarioError(f"unknown scenario {name!r}; there are {known}")
    return _packaged(f"{name}.toml"), Path()


def scenario_names() -> list[str]:
    """Return the names of the packaged scenarios."""
    folder = resources.files("simulations") / "scenarios"
    files = [item.name for item in folder.iterdir() if item.name != RECIPE]
    return sorted(name.removesuffix(".toml") for name in files if name.endswith(".toml"))


def parse_scenario(text: str, folder: Path = Path()) -> Scenario:
    """Parse a scenario, with its files in ``folder``; ``ScenarioError`` names a wrong key."""
    try:
        scenario = Scenario.model_validate(_extended(text, folder), context=folder)
    except tomllib.TOMLDecodeError as error:
        raise ScenarioError(f"not TOML: {error}") from None
    except ValidationError as error:
        raise ScenarioError(first_error(error, "scenario")) from None
    except ManifestError as error:
        raise ScenarioError(f"protocol.{error}") from None
    scenario.recipe()
    return scenario


def _extended(text: str, folder: Path, depth: int = 0) -> dict[str, Any]:
    """Return the values of a scenario merged over those of the one that it extends."""
    values = tomllib.loads(text)
    base = values.pop("extends", None)
    if base is None:
        return values
    if not isinstance(base, str) or depth == EXTENSIONS_MAX:
        raise ScenarioError(f"extends: a scenario's name, at most {EXTENSIONS_MAX} deep")
    merged = _extended(*_read(base, folder), depth + 1)
    for key, value in values.items():
        known = merged.get(key)
        if isinstance(known, dict) and isinstance(value, dict):
            merged[key] = {**known, **value}
        else:
            merged[key] = value
    return merged


def _packaged(name: str) -> str:
    return (resources.files("simulations") / "scenarios" / name).read_text()

"""Churn, faults and adversaries of a scenario, as data.

Times are minutes if the name contains ``minute`` and seconds otherwise. Shares refer to the nodes
that a ``NodeSelection`` leaves.
"""

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, model_validator

Share = Annotated[float, Field(ge=0, le=1)]
Minute = Annotated[float, Field(ge=0, le=100_000)]
Seconds = Annotated[float, Field(ge=0, le=1e7)]
PositiveSeconds = Annotated[float, Field(gt=0, le=1e7)]
Mbits = Annotated[float, Field(gt=0, le=1e6)]
RoleName = Literal["inference", "validator", "trainer", "relay"]

ALL_ROLES: tuple[RoleName, ...] = ("inference", "validator", "trainer", "relay")
CHURNING: tuple[RoleName, ...] = ("inference", "validator", "relay")


class ScenarioModel(BaseModel):
    """A table of a scenario file: frozen, and an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


# Durations


class Exponential(ScenarioModel):
    """Memoryless durations."""

    kind: Literal["exponential"]
    mean_seconds: PositiveSeconds


class Weibull(ScenarioModel):
    """Durations with a heavy tail (shape below 1), as measured in peer-to-peer networks."""

    kind: Literal["weibull"]
    shape: Annotated[float, Field(gt=0)]
    scale_seconds: PositiveSeconds


class Recorded(ScenarioModel):
    """Measured durations; each draw picks one at random.

    ``file`` is a CSV beside the scenario file with a number of seconds at the start of each line.
    """

    kind: Literal["recorded"]
    file: str | None = None
    seconds: Annotated[tuple[PositiveSeconds, ...], Field(min_length=1)]

    @model_validator(mode="before")
    @classmethod
    def _read(cls, values: Any, info: ValidationInfo) -> Any:
        """Read the file; the validation context is the folder of the scenario."""
        if not isinstance(values, dict) or not isinstance(values.get("file"), str):
            return values
        path = Path(info.context or ".") / values["file"]
        try:
            lines = path.read_text().splitlines()
            return {**values, "seconds": [float(line.partition(",")[0]) for line in lines]}
        except (OSError, ValueError) as error:
            raise ValueError(f"{path}: {error}") from None


Duration = Annotated[Exponential | Weibull | Recorded, Field(discriminator="kind")]


class Churn(ScenarioModel):
    """Nodes that leave and return independently."""

    session: Duration
    downtime: Duration
    roles: tuple[RoleName, ...] = CHURNING
    graceful_share: Share = 0.5
    """Share of announced departures; the others are crashes."""
    lose_state_share: Share = 0.0
    """Share of crashes after which the machine returns with its key only."""
    from_minute: Minute = 0.0
    until_minute: Minute | None = None


# Faults


class NodeSelection(ScenarioModel):
    """A selection of nodes: by name, or a random share or count of those with one of the roles."""

    names: tuple[str, ...] = ()
    roles: tuple[RoleName, ...] = ALL_ROLES
    share: Share | None = None
    count: Annotated[int, Field(ge=0)] | None = None

    def size(self, there: int) -> int:
        """Return the size of the selection out of ``there`` nodes with the roles."""
        if self.count is not None:
            return self.count
        return there if self.share is None else round(self.share * there)


class _Fault(ScenarioModel):
    minute: Minute


class _Lasting(_Fault):
    seconds: Seconds


class Partition(_Lasting):
    """Cut the network into islands of these shares; the rest form one more island."""

    kind: Literal["partition"]
    islands: tuple[Share, ...]


class OneWay(_Lasting):
    """Cut all traffic from ``source`` to ``target``."""

    kind: Literal["one-way"]
    source: NodeSelection
    target: NodeSelection


class Flapping(_Lasting):
    """A partition that repeatedly heals and returns."""

    kind: Literal["flapping"]
    islands: tuple[Share, ...]
    period_seconds: PositiveSeconds


class Stall(_Lasting):
    """Hold all bytes to and from machines."""

    kind: Literal["stall"]
    nodes: NodeSelection


class BreakStreams(_Fault):
    """Reset every stream of some machines once, or also close their connections."""

    kind: Literal["break-streams"]
    nodes: NodeSelection
    connections: bool = False


class Capacity(_Lasting):
    """Other access lines for a while."""

    kind: Literal["capacity"]
    nodes: NodeSelection
    upload_mbit: Mbits
    download_mbit: Mbits


class Skew(_Lasting):
    """Clocks that are off by up to ``skew_seconds`` either way."""

    kind: Literal["skew"]
    nodes: NodeSelection
    skew_seconds: Annotated[float, Field(ge=-3600, le=3600)]


class DiskFull(_Lasting):
    """Full disks: no room for new data."""

    kind: Literal["disk-full"]
    nodes: NodeSelection


class Crash(_Fault):
    """Nodes crash at the same moment, and may come back."""

    kind: Literal["crash"]
    nodes: NodeSelection
    lose_state: bool = False
    return_after_seconds: Seconds | None = None


class Leave(_Fault):
    """Nodes leave in order, and may come back."""

    kind: Literal["leave"]
    nodes: NodeSelection
    return_after_seconds: Seconds | None = None


class FlashCrowd(_Lasting):
    """``count`` nodes of a role join within ``seconds``."""

    kind: Literal["flash-crowd"]
    role: RoleName = "inference"
    count: Annotated[int, Field(ge=1)]
    with_page: bool = False
    """True if they start with the page that a join command of an honest node names then."""


class RollingRestart(_Fault):
    """Nodes leave and come back one after another."""

    kind: Literal["rolling-restart"]
    nodes: NodeSelection
    pause_seconds: Seconds
    """Interval between the starts of two restarts."""
    down_seconds: Seconds = 5.0


FaultPlan = Annotated[
    Partition
    | OneWay
    | Flapping
    | Stall
    | BreakStreams
    | Capacity
    | Skew
    | DiskFull
    | Crash
    | Leave
    | FlashCrowd
    | RollingRestart,
    Field(discriminator="kind"),
]


BEHAVIOURS: dict[str, tuple[RoleName, ...]] = {
    "stale-weights": ("inference",),
    "other-weights": ("inference",),
    "edited-tokens": ("inference",),
    "forged-rewards": ("inference",),
    "forged-proofs": ("inference",),
    "adaptive-choice": ("inference",),
    "accept-everything": ("validator",),
    "reject-everything": ("validator",),
    "silent": ("validator",),
    "copied-verdicts": ("validator",),
    "skipped-replay": ("validator",),
    "colluding-acceptance": ("validator",),
    "colluding-rejection": ("validator",),
    "two-verdicts": ("validator",),
    "two-certificates": ("validator",),
    "two-votes": ("validator",),
    "withheld-reveals": ("validator",),
    "wrong-leads": ("validator",),
    "invented-batch": ("trainer",),
    "stale-batch": ("trainer",),
    "empty-batch": ("trainer",),
    "hidden-worker": ("trainer",),
    "omitted-worker": ("trainer",),
    "rolled-back": ("trainer",),
    "term-jump": ("trainer",),
    "poisoned-state": ("trainer",),
    "poisoned-step": ("trainer",),
    "lying-shadow": ("trainer",),
    "excessive-difference": ("trainer",),
    "two-versions": ("trainer",),
    "former-leader": ("trainer",),
    "skipped-slots": ("inference",),
    "withheld-body": ("inference",),
    "poisoned-weights": ("trainer",),
    "bad-bytes": ("relay",),
    "stall": ("relay",),
    "weights-as-bodies": ALL_ROLES,
    "chosen-problems": ("relay",),
    "backdated-commits": ("relay", "validator"),
    "junk-commits": ALL_ROLES,
    "flood": ALL_ROLES,
    "graft-flood": ALL_ROLES,
    "ihave-flood": ALL_ROLES,
    "iwant-flood": ALL_ROLES,
    "invalid-signatures": ALL_ROLES,
    "malformed-rpc": ALL_ROLES,
    "slow-rpc": ALL_ROLES,
    "slow-streams": ALL_ROLES,
    "stream-flood": ALL_ROLES,
    "record-spam": ALL_ROLES,
    "conflicting-records": ALL_ROLES,
    "capacity-liars": ALL_ROLES,
    "sybil-flood": ALL_ROLES,
    "address-reflection": ALL_ROLES,
    "false-sync": ALL_ROLES,
    "eclipse": ALL_ROLES,
    "long-range": ("relay", "validator"),
    "covert-flash": ALL_ROLES,
    "cold-boot": ALL_ROLES,
}
"""Dishonest behaviours and their roles; ``simulations.adversaries`` implements them."""

FIRST_TIMED = "withheld-body"
"""From this one on, ``BEHAVIOURS`` can begin and end while their daemons run."""


class Adversaries(ScenarioModel):
    """Nodes of one role that run the real daemon with one part of it replaced."""

    behaviour: str
    role: RoleName
    names: tuple[str, ...] = ()
    """Names of the nodes; without names they are drawn."""
    share: Share | None = None
    count: Annotated[int, Field(ge=1)] | None = None
    per_node: Annotated[float, Field(ge=0, le=100)] | None = None
    """Untrusted adversaries per node of the scenario, in addition to the nodes. No node starts with
    their addresses."""
    join_minute: Minute = 0.0
    """Start of the additional adversaries; they start within the same interval as nodes."""
    from_minute: Minute = 0.0
    until_minute: Minute | None = None
    """End of the behaviour; before its start and after its end they are honest."""

    @property
    def timed(self) -> bool:
        """True if it covers a part of the run only."""
        return self.from_minute > 0 or self.until_minute is not None

    def put_off(self, minutes: float) -> Self:
        """Return the same plan, ``minutes`` later."""
        names = ("join_minute", "from_minute", "until_minute")
        moments = {name: getattr(self, name) for name in names}
        later = {name: at + minutes for name, at in moments.items() if at is not None}
        return self.model_copy(update=later)

    @model_validator(mode="after")
    def _check(self) -> Self:
        roles = BEHAVIOURS.get(self.behaviour)
        if roles is None:
            known = ", ".join(BEHAVIOURS)
            raise ValueError(f"unknown behaviour {self.behaviour!r}; there are {known}")
        if self.role not in roles:
            fit = " or ".join(roles)
            raise ValueError(f"behaviour {self.behaviour!r} is for {fit} nodes, not {self.role}")
        names = list(BEHAVIOURS)
        if self.timed and names.index(self.behaviour) < names.index(FIRST_TIMED):
            raise ValueError(f"behaviour {self.behaviour!r} cannot begin or end during a run")
        if self.per_node is not None and (self.names or self.share or self.count):
            raise ValueError("per_node adds nodes: no names, share or count beside it")
        if self.join_minute and self.per_node is None:
            raise ValueError("join_minute is for per_node")
        return self

"""Members of a testnet, and the files of each node."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from protocol.core.types import PeerId, Role
from roles.engines.factory import EngineName

STEPS = {"testnet": 60, "tiny-qwen3-bpe": 100}
"""Versions of a testnet by recipe, after which four to five of six answers are right (sampled at
temperature 1; measured on two cores)."""

MINUTES_DEFAULT = 12.0

RECIPE_DEFAULT = "testnet"

CHEATER_KINDS = (
    "stale-weights",
    "other-weights",
    "edited-tokens",
    "forged-rewards",
    "forged-proofs",
    "adaptive-choice",
)
"""Cheating workers, in the entry-point group ``prime_node.behaviours``, in the order of use."""

LAZY_KINDS = ("invented-verdicts", "skipped-replay")
"""Validators that save work, likewise."""


@dataclass(frozen=True, slots=True)
class Options:
    """Options of the command."""

    directory: Path
    relays: int = 1
    trainers: int = 1
    diloco: bool = False
    """True: all trainers train at the same time."""
    validators: int = 3
    inference: int = 3
    cheaters: int = 0
    lazy_validators: int = 0
    steps: int | None = None
    """None: the value of ``STEPS``, else of the recipe."""
    minutes: float = MINUTES_DEFAULT
    """Infinite: until an interrupt."""
    recipe: str = RECIPE_DEFAULT
    """A name in ``configs/runs``, or a file."""
    run: Path | None = None
    """Directory of a created run, with its recipe, trainers and validators."""
    environment: str = ""
    """Empty: the recipe's task."""
    seed: int = 0
    engine: EngineName = "builtin"
    """Engine of the honest inference nodes."""
    engine_python: Path | None = None
    """Interpreter of their engine processes; None for this one."""
    upload_bytes_per_second: int | None = None
    """Upload limit per node; None for no limit."""
    trainer: dict[str, str] = field(default_factory=dict)
    """Options of the trainers: keys of ``NodeConfig``."""
    log_to: tuple[str, ...] = ()
    """Logs of training steps on the trainers."""

    def members(self) -> Iterator[tuple[str, Role, str]]:
        """Yield (name, role, behaviour) of every node, relays first."""
        counts = (
            (Role.RELAY, self.relays),
            (Role.TRAINER, self.trainers),
            (Role.VALIDATOR, self.validators),
            (Role.INFERENCE, self.inference),
        )
        for role, count in counts:
            for number in range(1, count + 1):
                yield f"{role}-{number}", role, ""
        dishonest = (
            (Role.VALIDATOR, LAZY_KINDS, self.lazy_validators),
            (Role.INFERENCE, CHEATER_KINDS, self.cheaters),
        )
        for role, kinds, count in dishonest:
            for index in range(count):
                round_number, kind_index = divmod(index, len(kinds))
                kind = kinds[kind_index]
                yield f"{kind}-{round_number + 1}" if round_number else kind, role, kind


def role_of(behaviour: str) -> Role:
    """Return the role of a dishonest node."""
    return Role.VALIDATOR if behaviour in LAZY_KINDS else Role.INFERENCE


@dataclass(frozen=True, slots=True)
class NodePlan:
    """One node of the testnet; ``behaviour`` names a dishonest behaviour, else it is empty."""

    name: str
    role: Role
    behaviour: str
    directory: Path
    peer_id: PeerId


class SwarmLayout:
    """The files of a testnet.

    ``model`` is the Hugging Face directory of a task in text, ``task`` the files of its nodes, and
    ``trained`` the exported last version. ``recipe`` holds the rules; ``manifest``, the argument of
    ``--run``, adds genesis and signature. ``nodes`` holds the data directories. ``guest``, outside
    of ``directory``, is the data directory of the printed join command. A created ``run`` provides
    manifest, policy, task and the data directories of its trainers and validators.
    """

    def __init__(self, directory: Path, run: Path | None = None) -> None:
        self.directory = directory
        self.recipe = directory / "recipe.toml"
        self.manifest = directory / "run.toml"
        self.genesis_policy = directory / "genesis" / "policy.safetensors"
        self.model = directory / "genesis" / "model"
        self.task = directory / "genesis" / "task"
        self.trained = directory / "model"
        self.report = directory / "report.json"
        self.reward_picture = directory / "reward.png"
        self.join_script = directory / "join.sh"
        self.status_script = directory / "status.sh"
        self.guest = directory.with_name(f"{directory.name}-guest")
        self.nodes = directory / "nodes"
        self._members = run or self.nodes
        if run is not None:
            self.manifest = run / "run.toml"
            self.genesis_policy = run / "genesis.safetensors"
            self.task = run / "task"

    def node(self, name: str) -> Path:
        """Return the data directory of a node."""
        member = self._members / name
        return member if member.is_dir() else self.nodes / name

    def restart_command(self, name: str) -> Path:
        """Return the file with the restart command of a node."""
        return self.node(name) / "command.txt"

    def log(self, name: str) -> Path:
        """Return the log file of a node's standard error."""
        return self.directory / "logs" / f"{name}.log"

"""Who takes part in a testnet, and where the files of each node are."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from protocol.core.types import PeerId, Role
from roles.engines.factory import EngineName

STEPS = {"testnet": 60, "tiny-qwen3-bpe": 100}
"""Versions after which a testnet of a recipe ends: its task is then right four to five times in six
(sampled at temperature 1; measured on two cores)."""

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
"""Names in the entry-point group ``prime_node.behaviours``, in the order cheaters take them."""


@dataclass(frozen=True, slots=True)
class Options:
    """What the user asked for."""

    directory: Path
    relays: int = 1
    trainers: int = 1
    validators: int = 3
    inference: int = 3
    cheaters: int = 0
    steps: int | None = None
    """None: as ``STEPS`` has it, else the recipe's own."""
    minutes: float = MINUTES_DEFAULT
    """Infinite: until it is interrupted."""
    recipe: str = RECIPE_DEFAULT
    """The name of one in ``configs/runs``, or a file."""
    run: Path | None = None
    """Directory of a run that was founded: its recipe, trainers and validators are taken."""
    environment: str = ""
    """Empty: the recipe's own."""
    seed: int = 0
    engine: EngineName = "builtin"
    """What the honest inference nodes generate with."""
    engine_python: Path | None = None
    """Interpreter of their engine processes; None for our own."""
    upload_bytes_per_second: int | None = None
    """What each node sends at most; None for no bound."""
    log_to: tuple[str, ...] = ()
    """Logs of training steps that the trainers write."""

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
        for index in range(self.cheaters):
            round_number, kind_index = divmod(index, len(CHEATER_KINDS))
            kind = CHEATER_KINDS[kind_index]
            name = f"{kind}-{round_number + 1}" if round_number else kind
            yield name, Role.INFERENCE, kind


@dataclass(frozen=True, slots=True)
class NodePlan:
    """One node of the testnet; ``behaviour`` is what a dishonest one does, else empty."""

    name: str
    role: Role
    behaviour: str
    directory: Path
    peer_id: PeerId


class SwarmLayout:
    """The files of a testnet.

    ``model`` is the Hugging Face directory of a task in text, ``task`` what its nodes need, and
    ``trained`` the last version as such a directory.
    ``recipe`` is what the run was asked to be; ``manifest`` adds genesis and signature, and is what
    ``--run`` takes. ``nodes`` are the data directories, and ``guest``, beside all of it, is that of
    whoever joins by the command that the testnet prints. Of a founded ``run``, manifest, policy,
    task and the data directories of trainers and validators are those that its founding made.
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
        """Return the file with the command that starts a node again."""
        return self.node(name) / "command.txt"

    def log(self, name: str) -> Path:
        """Return where a node's standard error goes."""
        return self.directory / "logs" / f"{name}.log"

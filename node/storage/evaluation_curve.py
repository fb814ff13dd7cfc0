"""Evaluation results by version: rewards on held-out problems, kept over restarts.

The rewards come from certified rollouts, so a committee has computed them too.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import structlog
from pydantic import TypeAdapter, ValidationError

from protocol.ledger.chain import CheckpointEntry
from protocol.messages import RolloutCommit, Signed
from protocol.rollout.assignment import assign_commit
from protocol.rollout.body import REWARD_SCALE, RolloutSequence, reward_min, reward_of
from protocol.rollout.evaluation import Estimate, EvaluationPoint, share
from protocol.run.manifest import RunManifest
from protocol.run.recipe import SamplingSection
from roles.ports.storage import Put, StorageFullError, Store

log = structlog.get_logger()

TABLE = "evaluation"

ROLLOUTS_MAX = 64
"""Rollouts read per version: with 8 problems each, the confidence interval of a share is 4 points
wide to either side. A guess."""

_KEY_BYTES = 8


@dataclass(frozen=True, slots=True)
class _Evaluated:
    """Sums over the rollouts of one version, by problem."""

    version: int
    checkpoint: str
    commits: list[str] = field(default_factory=list)
    rewards: list[int] = field(default_factory=list)
    """Sum of rewards per problem, in millionths."""
    solved: list[int] = field(default_factory=list)
    """Number of answers per problem with task reward 1."""


_EVALUATED = TypeAdapter(_Evaluated)


class EvaluationCurve:
    """Evaluation results by version number."""

    def __init__(self) -> None:
        self._versions: dict[int, _Evaluated] = {}
        self._points: dict[int, EvaluationPoint] = {}

    def restore(self, store: Store) -> None:
        """Load the results of earlier processes."""
        for key, line in store.scan(TABLE):
            try:
                one = _EVALUATED.validate_json(line)
            except ValidationError:
                log.warning("evaluation unreadable", version=int.from_bytes(key, "big"))
                continue
            self._versions[one.version] = one

    def lacks(self, commit: Signed[RolloutCommit]) -> bool:
        """Return whether an evaluation rollout is still to be read."""
        known = self._known(commit.message)
        if known is None:
            return True
        return commit.digest.hex() not in known.commits and len(known.commits) < ROLLOUTS_MAX

    async def add(
        self,
        manifest: RunManifest,
        commit: Signed[RolloutCommit],
        sequences: Sequence[RolloutSequence],
        store: Store,
    ) -> None:
        """Add a missing rollout; it replaces results of another checkpoint of its version."""
        message = commit.message
        version = message.version
        known = self._known(message) or _Evaluated(version, message.checkpoint.hex())
        size = manifest.sampling.group_size
        is_solved = partial(_is_solved, manifest.sampling)
        solved = [*map(is_solved, _targets(manifest, commit), sequences)]
        for at in range(0, len(sequences), size):
            known.rewards.append(sum(claimed.reward for claimed in sequences[at : at + size]))
            known.solved.append(sum(solved[at : at + size]))
        known.commits.append(commit.digest.hex())
        self._versions[version] = known
        self._points.pop(version, None)
        change = Put(TABLE, version.to_bytes(_KEY_BYTES, "big"), _EVALUATED.dump_json(known))
        try:
            await store.commit([change])
        except StorageFullError as error:
            log.warning("evaluation not stored", version=version, error=str(error))

    def points(
        self, sampling: SamplingSection, checkpoints: Sequence[CheckpointEntry]
    ) -> tuple[EvaluationPoint, ...]:
        """Return the evaluated versions among ``checkpoints``, ascending."""
        return tuple(
            self._point(sampling, one)
            for version, one in sorted(self._versions.items())
            if version < len(checkpoints)
            and one.checkpoint == checkpoints[version].manifest.digest.hex()
        )

    def _known(self, message: RolloutCommit) -> _Evaluated | None:
        known = self._versions.get(message.version)
        return known if known and known.checkpoint == message.checkpoint.hex() else None

    def _point(self, sampling: SamplingSection, one: _Evaluated) -> EvaluationPoint:
        if one.version not in self._points:
            self._points[one.version] = _point(sampling, one)
        return self._points[one.version]


def _targets(manifest: RunManifest, commit: Signed[RolloutCommit]) -> Iterator[int | None]:
    for item in assign_commit(manifest, commit.signer, commit.message):
        yield item.length_target


def _is_solved(sampling: SamplingSection, target: int | None, claimed: RolloutSequence) -> bool:
    return claimed.reward == reward_of(sampling, 1.0, len(claimed.tokens), target)


def _point(sampling: SamplingSection, one: _Evaluated) -> EvaluationPoint:
    size = sampling.group_size
    reward = _mean_reward(sampling, [total / size for total in one.rewards])
    solved = share([count / size for count in one.solved], size)
    return EvaluationPoint(
        version=one.version,
        problems=len(one.rewards),
        answers=len(one.rewards) * size,
        reward_mean=reward.value,
        reward_low=reward.low,
        reward_high=reward.high,
        solved_fraction=solved.value,
        solved_low=solved.low,
        solved_high=solved.high,
    )


def _mean_reward(sampling: SamplingSection, means: Sequence[float]) -> Estimate:
    """Return the mean reward, scaled to [0, 1] between the least and the greatest reward."""
    least = reward_min(sampling)
    way = REWARD_SCALE - least
    found = share([(mean - least) / way for mean in means], sampling.group_size)
    bounds = (found.value, found.low, found.high)
    return Estimate(*((least + part * way) / REWARD_SCALE for part in bounds))

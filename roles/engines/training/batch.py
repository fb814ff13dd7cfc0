"""Batches for the model: filter verified sequences, compute advantages, split and pack.

The sequences of a forward pass are packed into one row without padding. Positions restart with each
sequence and attention stays within it, so the loss equals that of separate sequences.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, groupby, repeat

import torch
from torch import Tensor

from roles.engines.training.attention import Run
from roles.ports.engines import TrainingSequence

ADVANTAGE_EPSILON = 1e-6
"""Added to the standard deviation of a group's rewards, as in INTELLECT-2; TRL adds 1e-4."""


@dataclass(frozen=True, slots=True)
class TrainingSample:
    """A sequence with a non-zero advantage; ``place`` is its index in the batch.

    ``weight`` is that of each token in the loss of the update. ``old_logprobs`` are those under
    the policy at the start of the step, ``reference_logprobs`` those under the reference policy;
    both are empty unless the loss needs them.
    """

    place: int
    group: int
    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    advantage: float
    weight: float = 1.0
    old_logprobs: tuple[float, ...] = ()
    reference_logprobs: tuple[float, ...] = ()
    claimed: tuple[float, ...] | None = None
    lag: int = 0

    @property
    def length(self) -> int:
        """Tokens that the model reads: the last one predicts nothing."""
        return len(self.prompt) + len(self.tokens) - 1


@dataclass(slots=True)
class Pass:
    """One packed row of tokens ``[1, width]``, and its targets ``[n]``.

    ``predictors`` are the positions that predict ``targets``, in order; ``runs`` are the lengths of
    the sequences (see ``attention``); ``answer_of`` has the sequence of each target. The
    log-probabilities under a policy that the loss does not need are empty, ``[0]``.
    """

    tokens: Tensor
    positions: Tensor
    runs: tuple[Run, ...]
    predictors: Tensor
    targets: Tensor
    behaviour_logprobs: Tensor
    advantages: Tensor
    answer_of: Tensor
    weights: Tensor
    old_logprobs: Tensor
    reference_logprobs: Tensor


def group_advantages(rewards: Tensor, groups: Tensor, *, divide: bool = True) -> Tensor:
    """Return ``(R - mean) / (deviation + 1e-6)`` of each reward within its group, all ``[n]``.

    The deviation is the sample's (``n - 1``), as in TRL and in ``compute_advantages_grpo`` of
    prime-rl at 4bb0ff01f, which trained INTELLECT-2. The population's would give advantages
    ``sqrt(n / (n - 1))`` times larger: 1.15 times for 4 answers, 1.03 times for 16. A group of
    equal rewards gets exactly zero, and so does a single answer, where both others give NaN.
    Without ``divide`` it is ``R - mean`` (Dr. GRPO, arXiv 2503.20783).
    """
    _, member_of = torch.unique(groups, return_inverse=True)
    counts = torch.bincount(member_of).to(rewards.dtype)
    means = torch.zeros_like(counts).index_add(0, member_of, rewards) / counts
    advantages = rewards - means[member_of]
    if divide:
        squares = torch.zeros_like(counts).index_add(0, member_of, advantages.square())
        variances = squares / (counts - 1).clamp(min=1)
        advantages = advantages / (variances.sqrt() + ADVANTAGE_EPSILON)[member_of]
    return advantages.where(_range(rewards, member_of, len(counts)) > 0, 0.0)


def _range(rewards: Tensor, member_of: Tensor, groups: int) -> Tensor:
    """Return, for each reward, the maximum minus the minimum of its group."""
    zeros = torch.zeros(groups, dtype=rewards.dtype, device=rewards.device)
    highest = zeros.scatter_reduce(0, member_of, rewards, "amax", include_self=False)
    lowest = zeros.scatter_reduce(0, member_of, rewards, "amin", include_self=False)
    return (highest - lowest)[member_of]


def select(
    sequences: Sequence[TrainingSequence], *, divide: bool = True, ends: Collection[int] = ()
) -> list[TrainingSample]:
    """Return the sequences with a non-zero advantage; the others have no gradient.

    ``divide``: advantages are divided by the deviation of their group. With ``ends``, the end
    tokens, sequences without one are left out; they count in the advantages of their group.
    """
    rewards = torch.tensor([sequence.reward for sequence in sequences], dtype=torch.float64)
    groups = torch.tensor([sequence.group for sequence in sequences], dtype=torch.int64)
    advantages = group_advantages(rewards, groups, divide=divide).tolist()
    return [
        TrainingSample(
            place,
            one.group,
            one.prompt,
            one.tokens,
            one.logprobs,
            advantage,
            reference_logprobs=one.reference_logprobs,
            claimed=one.claimed,
            lag=one.lag,
        )
        for place, (one, advantage) in enumerate(zip(sequences, advantages, strict=True))
        if advantage and one.tokens and (not ends or one.tokens[-1] in ends)
    ]


def minibatches(samples: Sequence[TrainingSample], count: int) -> list[list[TrainingSample]]:
    """Split into ``count`` minibatches of whole groups, or fewer if there are fewer groups.

    Groups are dealt round-robin in batch order, which is random.
    """
    groups: dict[int, list[TrainingSample]] = {}
    for sample in samples:
        groups.setdefault(sample.group, []).append(sample)
    dealt = list(groups.values())
    parts = (dealt[start::count] for start in range(min(count, len(dealt))))
    return [[sample for group in part for sample in group] for part in parts]


def pack(samples: Sequence[TrainingSample], pass_tokens: int) -> list[list[TrainingSample]]:
    """Pack samples into passes of ``pass_tokens`` by first fit; a longer sample is a pass alone.

    The longest come first, so samples of equal length are neighbours.
    """
    passes: list[list[TrainingSample]] = []
    free: list[int] = []
    for sample in sorted(samples, key=lambda sample: -sample.length):
        fitting = (number for number, room in enumerate(free) if room >= sample.length)
        number = next(fitting, len(passes))
        if number == len(passes):
            passes.append([])
            free.append(pass_tokens)
        passes[number].append(sample)
        free[number] -= sample.length
    return passes


def collate(samples: Sequence[TrainingSample], device: str) -> Pass:
    """Return one pass as tensors."""
    tokens: list[int] = []
    positions: list[int] = []
    predictors: list[int] = []
    for sample in samples:
        tokens += (sample.prompt + sample.tokens)[:-1]
        positions += range(sample.length)
        predictors += range(len(tokens) - len(sample.tokens), len(tokens))
    lengths = groupby(sample.length for sample in samples)

    def integers(values: Iterable[int]) -> Tensor:
        return torch.tensor(list(values), dtype=torch.int64, device=device)

    def floats(values: Iterable[Iterable[float]]) -> Tensor:
        """One sample after the other."""
        return torch.tensor([*chain(*values)], dtype=torch.float32, device=device)

    return Pass(
        tokens=torch.tensor([tokens], device=device),
        positions=torch.tensor([positions], device=device),
        runs=tuple((length, sum(1 for _ in run)) for length, run in lengths),
        predictors=integers(predictors),
        targets=integers(chain(*(sample.tokens for sample in samples))),
        behaviour_logprobs=floats(sample.logprobs for sample in samples),
        advantages=floats(repeat(one.advantage, len(one.tokens)) for one in samples),
        answer_of=integers(
            chain(*(repeat(place, len(one.tokens)) for place, one in enumerate(samples)))
        ),
        weights=floats(repeat(one.weight, len(one.tokens)) for one in samples),
        old_logprobs=floats(sample.old_logprobs for sample in samples),
        reference_logprobs=floats(sample.reference_logprobs for sample in samples),
    )

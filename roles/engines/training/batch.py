"""Batches for the model: filter verified sequences, compute advantages, split and pack.

The sequences of a forward pass are packed into one row without padding. Positions restart with each
sequence and attention stays within it, so the loss equals that of separate sequences.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, groupby

import torch
from torch import Tensor

from roles.engines.files.stored_numbers import floats, integers
from roles.engines.training.attention import Run
from roles.ports.engines import Logprobs, TokenIds, TrainingSequence

ADVANTAGE_EPSILON = 1e-6
"""Added to the standard deviation of a group's rewards, as in INTELLECT-2; TRL adds 1e-4."""


@dataclass(frozen=True, slots=True)
class TrainingSample:
    """A sequence with a non-zero advantage; ``place`` is its index in the batch.

    Its numbers may be in a file; ``collate`` reads them. ``weight`` is that of each token in the
    loss of the update: 0 for a copy that only fills a rank's pass. ``old_logprobs`` are those under
    the policy at the start of the step, ``reference_logprobs`` those under the reference policy;
    both are empty unless the loss needs them.
    """

    place: int
    group: int
    prompt: TokenIds
    tokens: TokenIds
    logprobs: Logprobs
    advantage: float
    weight: float = 1.0
    old_logprobs: Logprobs | Tensor = ()
    reference_logprobs: Logprobs = ()
    claimed: Logprobs | None = None
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
    sequences: Sequence[TrainingSequence], *, divide: bool = True, masks_cut: bool = False
) -> list[TrainingSample]:
    """Return the sequences with a non-zero advantage; the others have no gradient.

    ``divide``: advantages are divided by the deviation of their group. With ``masks_cut``,
    sequences that did not end are left out; they count in the advantages of their group.
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
        if advantage and one.tokens and (one.ended or not masks_cut)
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
    room = _Rooms(len(samples))
    for sample in sorted(samples, key=lambda sample: -sample.length):
        number = room.first(sample.length)
        if number is None:
            number = len(passes)
            passes.append([])
            room.set(number, pass_tokens)
        passes[number].append(sample)
        room.set(number, room.of(number) - sample.length)
    return passes


class _Rooms:
    """Free tokens of passes, as a binary tree of maxima: first fit in logarithmic time.

    A pass that is not open yet has none.
    """

    def __init__(self, passes_max: int) -> None:
        self._leaves = 1 << max(0, passes_max - 1).bit_length()
        self._most = [-1] * (2 * self._leaves)

    def of(self, number: int) -> int:
        return self._most[self._leaves + number]

    def set(self, number: int, tokens: int) -> None:
        most, node = self._most, self._leaves + number
        most[node] = tokens
        while node > 1:
            node //= 2
            most[node] = max(most[2 * node], most[2 * node + 1])

    def first(self, tokens: int) -> int | None:
        """Return the first pass with room for ``tokens``."""
        most, node = self._most, 1
        if most[node] < tokens:
            return None
        while node < self._leaves:
            node *= 2
            node += most[node] < tokens
        return node - self._leaves


def deal(
    passes: Sequence[Sequence[TrainingSample]], ranks: int
) -> list[list[list[TrainingSample]]]:
    """Deal passes to ranks: the same number to each, and about the same number of tokens.

    All ranks compute their passes of one number together, so these are of similar length. The last
    ones may be copies of the shortest sample, with weight 0, which must not count anywhere. One
    rank gets the passes as they are.
    """
    order = sorted(range(len(passes)), key=lambda number: (-pass_tokens_of(passes[number]), number))
    rounds = [order[first : first + ranks] for first in range(0, len(order), ranks)]
    dealt: list[list[list[TrainingSample]]] = [[] for _ in range(ranks)]
    totals = [0] * ranks
    for numbers in sorted(rounds, key=min):
        waiting = sorted(range(ranks), key=lambda rank: (totals[rank], rank))
        for rank, number in zip(waiting, numbers, strict=False):  # the shortest rank, longest pass
            dealt[rank].append(list(passes[number]))
            totals[rank] += pass_tokens_of(passes[number])
        for rank in waiting[len(numbers) :]:
            shortest = min((one for each in passes for one in each), key=lambda one: one.length)
            dealt[rank].append([replace(shortest, weight=0.0)])
            totals[rank] += shortest.length
    return dealt


def pass_tokens_of(samples: Iterable[TrainingSample]) -> int:
    """Return the number of tokens that the model reads in a pass."""
    return sum(sample.length for sample in samples)


def collate(samples: Sequence[TrainingSample], device: str) -> Pass:
    """Return one pass as tensors; reads the numbers that are in files."""
    answers = [len(sample.tokens) for sample in samples]
    tokens = [integers(sample.tokens) for sample in samples]
    pairs = zip(samples, tokens, strict=True)
    read = [torch.cat([integers(one.prompt), answer[:-1]]) for one, answer in pairs]
    ends = accumulate(sample.length for sample in samples)
    predictors = [torch.arange(end - n, end) for end, n in zip(ends, answers, strict=True)]
    repeats = torch.tensor(answers)

    def each(values: Iterable[float], kind: torch.dtype) -> Tensor:
        """Repeat one value of each sample for its answer's tokens."""
        return torch.tensor([*values], dtype=kind).repeat_interleave(repeats).to(device)

    def joined(values: Iterable[Logprobs | Tensor]) -> Tensor:
        return torch.cat([floats(one) for one in values]).to(device)

    return Pass(
        tokens=torch.cat(read)[None].to(device),
        positions=torch.cat([torch.arange(one.length) for one in samples])[None].to(device),
        runs=tuple(
            (length, sum(1 for _ in run)) for length, run in groupby(one.length for one in samples)
        ),
        predictors=torch.cat(predictors).to(device),
        targets=torch.cat(tokens).to(device),
        behaviour_logprobs=joined(one.logprobs for one in samples),
        advantages=each((one.advantage for one in samples), torch.float32),
        answer_of=each(range(len(samples)), torch.int64),
        weights=each((one.weight for one in samples), torch.float32),
        old_logprobs=joined(one.old_logprobs for one in samples),
        reference_logprobs=joined(one.reference_logprobs for one in samples),
    )


def answers_of(samples: Sequence[TrainingSample], values: Tensor) -> Sequence[Tensor]:
    """Split values of a pass's targets ``[n]`` into those of each sample, in main memory."""
    return torch.split(values.cpu(), [len(sample.tokens) for sample in samples])

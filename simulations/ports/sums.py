"""Modelled task, and the answers of modelled policies.

The seed of a policy holds its skill and its lineage. Its samples are a hash of prompt and noise
seed, so every node with the policy can recompute them.
"""

from collections.abc import Iterable, Sequence

from blake3 import blake3
from typing_extensions import override

from protocol.core.crypto import digest
from protocol.core.types import DIGEST_BYTES
from roles.environments.base import END
from roles.environments.threaded import BlockingTask

_FIRST = 2
"""Tokens 0 and 1 are padding and end."""

_SYMBOLS = 8
_FILLER = bytes(_FIRST + value % _SYMBOLS for value in range(256))
_SKILL_BYTES = 4
SEED_BYTES = _SKILL_BYTES + DIGEST_BYTES
SKILL_MAX = 0.97
"""Asymptote of training."""


class SumTask(BlockingTask):
    """Add two symbols: an answer is right if its first token is their sum.

    A length target follows the symbols, in base 8.
    """

    name = "simulated-sum"
    vocabulary_size = _FIRST + _SYMBOLS

    @override
    def prompt(self, seed: int, length_target: int | None) -> tuple[int, ...]:
        digits = "" if length_target is None else f"{length_target:o}"
        target = (_FIRST + int(digit) for digit in digits)
        return (_FIRST + seed % _SYMBOLS, _FIRST + (seed >> 8) % _SYMBOLS, *target)

    @override
    def score(self, seed: int, completion: Sequence[int]) -> float:
        return float(bool(completion) and completion[0] == _answer(self.prompt(seed, None)))

    @override
    def text(self, tokens: Sequence[int]) -> str:
        return " ".join(map(str, tokens))


def _answer(prompt: Sequence[int]) -> int:
    return _FIRST + sum(token - _FIRST for token in prompt[:2]) % _SYMBOLS


def policy_seed(skill: float, lineage: bytes) -> bytes:
    """Return the seed of the policy with this skill and lineage."""
    return round(skill * 1e6).to_bytes(_SKILL_BYTES, "big") + digest(lineage)


def altered_seed(seed: bytes) -> bytes:
    """Return the seed of a policy of equal skill that no honest step makes."""
    return seed[:_SKILL_BYTES] + digest(b"altered/" + seed)


def skill_of(seed: bytes) -> float:
    """Return a policy's probability of a right answer."""
    return min(1.0, int.from_bytes(seed[:_SKILL_BYTES], "big") / 1e6)


def sample(seed: bytes, prompt: Sequence[int], noise_seed: int, length_max: int) -> tuple[int, ...]:
    """Return the sample of the policy of ``seed``; every node can recompute it."""
    stream = blake3(seed + bytes(prompt) + noise_seed.to_bytes(8, "big")).digest(8 + length_max)
    right = _answer(prompt)
    correct = int.from_bytes(stream[:4], "big") < skill_of(seed) * 2**32
    first = right if correct else _FIRST + (right - _FIRST + 1 + stream[4] % 7) % _SYMBOLS
    length = 1 + int.from_bytes(stream[5:7], "big") % max(1, length_max - 1)
    return (first, *stream[8 : 7 + length].translate(_FILLER), END)


def rollout_mark(sequences: Iterable[tuple[Sequence[int], Sequence[int]]]) -> str:
    """Return the name of a rollout in the trace: a hash of its (prompt, tokens) pairs in order."""
    hasher = blake3()
    for prompt, tokens in sequences:
        hasher.update(bytes(prompt) + b"/" + bytes(tokens) + b"/")
    return hasher.hexdigest()[:16]

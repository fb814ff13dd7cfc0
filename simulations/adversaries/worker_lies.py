"""Dishonest workers, for testnets and simulations: one port replaced each, role code untouched.

A behaviour takes the honest generation engine and environment of an inference node and gives back
the pair that its flow will use. Every kind tells exactly one lie and is honest otherwise, so each
shows that one check works. They are found by name through the entry-point group
``prime_node.behaviours``; ``node`` never imports this package.
"""

import json
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import numpy as np

from protocol.crypto import digest
from protocol.policy import TensorEntry, policy_digest
from protocol.toploc.field import PRIME
from protocol.types import Digest
from roles.environments.base import END
from roles.ports.engines import (
    Environment,
    Generation,
    GenerationEngine,
    GenerationRequest,
    Policy,
)
from roles.ports.swarm import RefusedError

WEIGHT_NOISE = 1e-3
"""Relative noise on the weights of ``other-weights``: little beside a wrong model or int8 rounding
(4e-3), and far more than the fp32 proofs tolerate."""

_FIRST_CHARACTER = 2
"""Tokens 0 and 1 are padding and end."""


class Behaviour(Protocol):
    """What turns an honest worker's ports into those of a liar."""

    def __call__(
        self, engine: GenerationEngine, environment: Environment
    ) -> tuple[GenerationEngine, Environment]:
        """Return the ports that the flow will use."""


class NoPredecessorError(RefusedError):
    """The first policy that a stale worker sees has none before it to cheat with."""


class PassingGeneration:
    """The ``GenerationEngine`` port, which passes everything on."""

    def __init__(self, honest: GenerationEngine) -> None:
        self._honest = honest

    async def load(self, policy: Policy) -> None:
        """Load what was asked for; raises ``ValueError``."""
        await self._honest.load(policy)

    async def generate(
        self, requests: Sequence[GenerationRequest], temperature: float
    ) -> list[Generation]:
        """Generate what was asked for."""
        return await self._honest.generate(requests, temperature)


class PassingEnvironment:
    """The ``Environment`` port, which passes everything on."""

    def __init__(self, honest: Environment) -> None:
        self._honest = honest

    @property
    def name(self) -> str:
        """The honest name."""
        return self._honest.name

    @property
    def vocabulary(self) -> Sequence[str]:
        """The honest vocabulary."""
        return self._honest.vocabulary

    def prompt(self, seed: int) -> tuple[int, ...]:
        """Return the honest prompt."""
        return self._honest.prompt(seed)

    def score(self, seed: int, completion: Sequence[int]) -> float:
        """Return the honest reward."""
        return self._honest.score(seed, completion)


class StaleWeights(PassingGeneration):
    """Generates with the policy before the one it claims: saves every other download."""

    def __init__(self, honest: GenerationEngine) -> None:
        super().__init__(honest)
        # A node deletes old versions, so the liar keeps its own copy.
        self._directory = tempfile.TemporaryDirectory(prefix="prime-node-stale-")
        self._previous: Policy | None = None

    async def load(self, policy: Policy) -> None:
        """Load the policy seen before ``policy``; raises ``NoPredecessorError`` for the first."""
        previous = self._previous
        if previous is None or previous.digest != policy.digest:
            kept = Path(self._directory.name) / f"{policy.version}.safetensors"
            shutil.copyfile(policy.path, kept)
            self._previous = replace(policy, path=kept)
        if previous is None or previous.digest == policy.digest:
            raise NoPredecessorError(f"no policy before version {policy.version} seen yet")
        await self._honest.load(previous)
        previous.path.unlink()


class OtherWeights(PassingGeneration):
    """Generates with weights that are almost those it claims, as a cheaper copy would be."""

    def __init__(self, honest: GenerationEngine) -> None:
        super().__init__(honest)
        self._directory = tempfile.TemporaryDirectory(prefix="prime-node-other-")

    async def load(self, policy: Policy) -> None:
        """Load a noisy copy of ``policy``."""
        path = Path(self._directory.name) / "policy.safetensors"
        perturbed = perturb_policy(policy.path, path, seed=policy.version)
        await self._honest.load(replace(policy, digest=perturbed, path=path))


class EditedTokens(PassingGeneration):
    """Changes one token of every answer after generation and keeps the proofs."""

    def __init__(self, honest: GenerationEngine, vocabulary_size: int) -> None:
        super().__init__(honest)
        self._vocabulary_size = vocabulary_size

    async def generate(
        self, requests: Sequence[GenerationRequest], temperature: float
    ) -> list[Generation]:
        """Return honest sequences, one token edited in each that has more than its end."""
        honest = await self._honest.generate(requests, temperature)
        return [replace(item, tokens=self._edited(item.tokens)) for item in honest]

    def _edited(self, tokens: tuple[int, ...]) -> tuple[int, ...]:
        place = next((index for index, token in enumerate(tokens) if token != END), None)
        if place is None:
            return tokens
        characters = self._vocabulary_size - _FIRST_CHARACTER
        other = (tokens[place] - _FIRST_CHARACTER + 1) % characters + _FIRST_CHARACTER
        return (*tokens[:place], other, *tokens[place + 1 :])


class ForgedProofs(PassingGeneration):
    """Sends proofs of the right form about nothing: saves keeping the states."""

    def __init__(self, honest: GenerationEngine) -> None:
        super().__init__(honest)
        self._rng = np.random.default_rng(0)

    async def generate(
        self, requests: Sequence[GenerationRequest], temperature: float
    ) -> list[Generation]:
        """Return honest sequences with random proofs."""
        honest = await self._honest.generate(requests, temperature)
        return [replace(item, proofs=tuple(map(self._forged, item.proofs))) for item in honest]

    def _forged(self, proof: bytes) -> bytes:
        words = np.frombuffer(proof, dtype=">u2").copy()
        # The modulus, and the coefficients that a short chunk does not use, must stay valid.
        random = self._rng.integers(1, PRIME, size=len(words) - 1)
        words[1:] = np.where(words[1:] != 0, random, 0)
        return words.tobytes()


class ForgedRewards(PassingEnvironment):
    """An environment that calls right answers wrong and wrong ones right."""

    def score(self, seed: int, completion: Sequence[int]) -> float:
        """Return one minus the honest reward."""
        return 1.0 - self._honest.score(seed, completion)


def stale_weights(
    engine: GenerationEngine, environment: Environment
) -> tuple[GenerationEngine, Environment]:
    """Lie about which policy generated."""
    return StaleWeights(engine), environment


def other_weights(
    engine: GenerationEngine, environment: Environment
) -> tuple[GenerationEngine, Environment]:
    """Lie about the weights of the policy."""
    return OtherWeights(engine), environment


def edited_tokens(
    engine: GenerationEngine, environment: Environment
) -> tuple[GenerationEngine, Environment]:
    """Lie about what was sampled."""
    return EditedTokens(engine, len(environment.vocabulary)), environment


def forged_rewards(
    engine: GenerationEngine, environment: Environment
) -> tuple[GenerationEngine, Environment]:
    """Lie about how good the answers are."""
    return engine, ForgedRewards(environment)


def forged_proofs(
    engine: GenerationEngine, environment: Environment
) -> tuple[GenerationEngine, Environment]:
    """Lie about having computed."""
    return ForgedProofs(engine), environment


BEHAVIOURS: dict[str, Behaviour] = {
    "stale-weights": stale_weights,
    "other-weights": other_weights,
    "edited-tokens": edited_tokens,
    "forged-rewards": forged_rewards,
    "forged-proofs": forged_proofs,
}


def perturb_policy(source: Path, target: Path, *, seed: int) -> Digest:
    """Write a noisy copy of a safetensors policy; return the digest of its tensors.

    The file is eight bytes of header length, a JSON header with the tensors' offsets, the tensors.
    """
    rng = np.random.default_rng(seed)
    content = bytearray(source.read_bytes())
    start = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:start])
    header.pop("__metadata__", None)
    entries: list[TensorEntry] = []
    for name, tensor in header.items():
        first, last = (start + offset for offset in tensor["data_offsets"])
        body = _perturbed(bytes(content[first:last]), tensor["dtype"], rng)
        content[first:last] = body
        entries.append((name, tensor["dtype"], tuple(tensor["shape"]), digest(body)))
    target.write_bytes(content)
    return policy_digest(entries)


def _perturbed(body: bytes, dtype: str, rng: np.random.Generator) -> bytes:
    if dtype == "F32":
        values = np.frombuffer(body, dtype=np.dtype("<f4"))
        noise = rng.standard_normal(values.shape, dtype=np.float32)
        return (values * (1 + np.float32(WEIGHT_NOISE) * noise)).tobytes()
    if dtype == "BF16":
        # One unit in the last place is 4e-3 to 8e-3 of the value: the least there is.
        bits = np.frombuffer(body, dtype=np.uint16)
        return (bits ^ rng.integers(0, 2, size=bits.shape, dtype=np.uint16)).tobytes()
    raise ValueError(f"no noise for {dtype} tensors")

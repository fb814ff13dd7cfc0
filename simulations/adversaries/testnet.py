"""Dishonest workers and validators of a testnet, with real weights, found through entry points.

``node`` never imports this package; it looks the names up in the group ``prime_node.behaviours``.
"""

import json
import shutil
import tempfile
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
from typing_extensions import override

from protocol.core.crypto import TensorEntry, digest, policy_digest
from protocol.core.rng import Rng
from protocol.core.types import Digest
from roles.ports.engines import Engines, Policy
from simulations.adversaries.lazy import UnreplayedVerification
from simulations.adversaries.passthrough import OtherEngines
from simulations.adversaries.validators import FLAWLESS, BlindVerification
from simulations.adversaries.workers import WORKER_BEHAVIOURS, PolicyCopies

WEIGHT_NOISE = 1e-3
"""Relative noise: little beside int8 rounding (4e-3), far more than the fp32 proofs tolerate."""


class CopiedFiles(PolicyCopies):
    """Safetensors files in a temporary folder, deleted with the process."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="prime-node-behaviour-"))
        weakref.finalize(self, shutil.rmtree, self._folder)

    @override
    def keep(self, policy: Policy) -> Policy:
        path = self._path(f"{policy.version}")
        shutil.copyfile(policy.path, path)
        return replace(policy, path=path)

    @override
    def perturb(self, policy: Policy) -> Policy:
        path = self._path("other")
        perturbed = perturb_policy(policy.path, path, seed=policy.version)
        return replace(policy, digest=perturbed, path=path)

    @override
    def discard(self, policy: Policy) -> None:
        policy.path.unlink()

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.safetensors"


def _on_files(name: str) -> Callable[[Engines], Engines]:
    def wrapped(honest: Engines) -> Engines:
        return WORKER_BEHAVIOURS[name](honest, CopiedFiles(), Rng(name.encode()))

    return wrapped


stale_weights = _on_files("stale-weights")
other_weights = _on_files("other-weights")
edited_tokens = _on_files("edited-tokens")
forged_rewards = _on_files("forged-rewards")
forged_proofs = _on_files("forged-proofs")
adaptive_choice = _on_files("adaptive-choice")


def invented_verdicts(honest: Engines) -> Engines:
    """Compute nothing: accept, with invented witness values."""
    rng = Rng(b"invented-verdicts")
    return OtherEngines(honest, verification=lambda _: BlindVerification(FLAWLESS, rng))


def skipped_replay(honest: Engines) -> Engines:
    """Compute the prefill, and do not repeat the sampling."""
    return OtherEngines(honest, verification=UnreplayedVerification)


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
        # One unit in the last place is 4e-3 to 8e-3 of the value: the minimum.
        bits = np.frombuffer(body, dtype=np.uint16)
        return (bits ^ rng.integers(0, 2, size=bits.shape, dtype=np.uint16)).tobytes()
    raise ValueError(f"no noise for {dtype} tensors")

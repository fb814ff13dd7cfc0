"""Read-only access to the run and versions of a data directory, also while its node runs."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path

from node.local.datadir import DataDir
from node.local.errors import ExitCode, NodeError
from node.local.run_pin import load_run, pinned_run
from node.storage.ledger_history import LedgerHistory
from node.storage.sharded_files import index_of
from node.storage.state import stored_chains, stored_messages, stored_value
from protocol.core.crypto import digest, verify
from protocol.core.faults import Fault
from protocol.core.types import Digest, PeerId, Version
from protocol.replica.replica import Replica
from protocol.run.manifest import RunFileName, RunManifest, SignedManifest
from protocol.run.model_files import decode_bundle
from protocol.shardcast.index import encode
from roles.ports.storage import weights_name

MANIFEST = "run.toml"
"""Signed manifest in a directory from ``run create``, and in an exported one."""


@dataclass(frozen=True, slots=True)
class HeldVersion:
    """Version in a data directory; ``digest`` is the signed digest of the policy in ``path``."""

    version: Version
    digest: Digest
    path: Path
    created_at: float
    """In unix seconds."""


@dataclass(frozen=True, slots=True)
class CertifiedWork:
    """Certified rollouts of one key, as final pages name them."""

    peer: PeerId
    rollouts: int
    tokens: int


class HeldRun:
    """Run and its versions in the directory ``root``."""

    def __init__(self, root: Path, signed: SignedManifest, replica: Replica) -> None:
        self.root = root
        self.signed = signed
        self.replica = replica
        """The run as this node has stored it."""
        self._datadir = DataDir(root)
        self._ledger = replica.ledger
        self._versions = self._held()

    @property
    def manifest(self) -> RunManifest:
        """Manifest of the run."""
        return self.signed.manifest

    @property
    def state_path(self) -> Path:
        """The node's store, which exists once the node has run."""
        return self._datadir.state

    @property
    def versions(self) -> Mapping[int, HeldVersion]:
        """Versions in the directory by number, ascending."""
        return self._versions

    def version(self, number: int | None = None) -> HeldVersion:
        """Return a version, by default the newest one; raises ``NodeError``."""
        if not self._versions:
            raise NodeError(
                f"{self.root} holds no version yet; start its node and wait until prime-node "
                "status shows one, or give the --data-dir of another node",
                ExitCode.CONFIG,
            )
        held = self._versions.get(max(self._versions) if number is None else number)
        if held is None:
            raise NodeError(
                f"version {number} is not held in {self.root}, only {ranges(self._versions)}; "
                "take one of these, or give the --data-dir of a node that holds it",
                ExitCode.CONFIG,
            )
        return held

    def rewards(self, until: int) -> list[tuple[int, float]]:
        """Return the mean reward of the batch of each version up to ``until``."""
        messages = [entry.manifest.message for entry in self._ledger.chain.checkpoints]
        return [
            (message.version, message.reward_mean / 1e6)
            for message in messages
            if 0 < message.version <= until and message.batch
        ]

    def contributions(self) -> list[CertifiedWork]:
        """Return the contributions of all workers in final pages, most rollouts first."""
        found = [
            CertifiedWork(peer, account.rollouts, account.tokens)
            for peer, account in self.replica.intake.accounts.scan()
            if account.rollouts
        ]
        return sorted(found, key=lambda one: (-one.rollouts, one.peer))

    def small_files(self) -> dict[str, bytes]:
        """Return the files of the run's bundle by name; empty for a task over characters.

        Raises ``NodeError``.
        """
        if "bundle" not in self.manifest.genesis.files:
            return {}
        path = self.run_file("bundle")
        files = decode_bundle(path.read_bytes())
        if isinstance(files, Fault):
            raise NodeError(f"{path}: {files}; use another software version", ExitCode.CONFIG)
        return files

    def run_file(self, name: RunFileName) -> Path:
        """Return a file of the run, verified against the manifest; raises ``NodeError``."""
        path, rules = self._datadir.task / name, self.manifest.shardcast
        try:
            found = digest(encode(index_of(path, rules.shard_bytes, rules.chunk_bytes)))
        except (OSError, ValueError):
            raise NodeError(
                f"the run's {name} is not in {path.parent}; start the node, which fetches it",
                ExitCode.CONFIG,
            ) from None
        if found.hex() != self.manifest.genesis.files[name].index:
            raise NodeError(
                f"{path} is not the {name} that the run's creator signed; delete it and start the "
                "node, which fetches it again",
                ExitCode.CONFIG,
            )
        return path

    def _held(self) -> dict[int, HeldVersion]:
        genesis = self.manifest.genesis
        start = HeldVersion(
            Version(0), self.manifest.genesis_policy, self._datadir.genesis, genesis.created_at
        )
        found = {0: start} if start.path.is_file() else {}
        for entry in self._ledger.chain.checkpoints:
            message = entry.manifest.message
            path = self._datadir.weights / weights_name(message.version)
            if path.is_file():
                found[message.version] = HeldVersion(
                    Version(message.version),
                    Digest(message.policy),
                    path,
                    message.created_at / 1000,
                )
        return found


def open_held_run(root: Path) -> HeldRun:
    """Return the run of a data directory, or of a directory from ``run create``.

    Raises ``NodeError`` if there is none.
    """
    datadir = DataDir(root)
    try:
        signed = pinned_run(datadir)
    except NotADirectoryError:
        signed = None
    except OSError as error:
        raise NodeError(
            f"cannot read {datadir.run}: {error.strerror}; run this as the node's user",
            ExitCode.CONFIG,
        ) from None
    if signed is None and (root / MANIFEST).is_file():
        signed = load_run(root / MANIFEST)
    if signed is None:
        raise NodeError(
            f"{root} belongs to no run; give the --data-dir of a node, or a directory that "
            "prime-node run create made",
            ExitCode.CONFIG,
        )
    replica = Replica(signed.manifest, verify)
    if datadir.state.is_file():
        try:
            _restore(replica, datadir.state)
        except ValueError as error:
            raise NodeError(
                f"cannot read {datadir.state}: {error}; give the --data-dir of another node",
                ExitCode.CONFIG,
            ) from None
    return HeldRun(root, signed, replica)


def _restore(replica: Replica, store: Path) -> None:
    intake = replica.intake
    LedgerHistory(partial(stored_value, store), intake.open_page).restore(intake.ledger)
    for chain in stored_chains(store):
        replica.intake.offer_chain(chain)
    for envelope in stored_messages(store):
        replica.restore(envelope)
    replica.count_final()


def ranges(numbers: Mapping[int, object]) -> str:
    """Return numbers as text, such as ``0, 12 to 16``."""
    ordered = [-math.inf, *sorted(numbers), math.inf]
    starts = [high for low, high in pairwise(ordered) if high != low + 1][:-1]
    ends = [low for low, high in pairwise(ordered) if high != low + 1][1:]
    parts = (
        f"{start}" if start == end else f"{start} to {end}"
        for start, end in zip(starts, ends, strict=True)
    )
    return ", ".join(parts)

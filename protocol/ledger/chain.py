"""The versions that this node has taken, and which one may come next.

A version number belongs to the first trainer that published it, unless a later term claims it from
the same parent: then the earlier trainer had been replaced and did not know yet.
"""

from dataclasses import dataclass

from protocol.faults import Fault, FaultCode
from protocol.manifest import RunManifest
from protocol.messages import CheckpointManifest, Signed
from protocol.types import Digest


@dataclass(slots=True)
class CheckpointEntry:
    """A published version, and which of its commits are not certified as far as we know."""

    manifest: Signed[CheckpointManifest]
    uncertified: dict[Digest, None]


class Chain:
    """The versions by number, and the commits that they learned from."""

    def __init__(self, manifest: RunManifest) -> None:
        self._manifest = manifest
        self.checkpoints: list[CheckpointEntry] = []
        self.learned: dict[Digest, int] = {}
        """Commit to the version that learned from it."""

    @property
    def head(self) -> Signed[CheckpointManifest] | None:
        """The newest version, or None before the genesis policy is known."""
        return self.checkpoints[-1].manifest if self.checkpoints else None

    @property
    def version(self) -> int:
        """The newest version, -1 before the first."""
        return len(self.checkpoints) - 1

    def get(self, version: int) -> Signed[CheckpointManifest] | None:
        """Return the signed manifest of ``version`` if it is known."""
        known = 0 <= version < len(self.checkpoints)
        return self.checkpoints[version].manifest if known else None

    def append(self, entry: CheckpointEntry) -> None:
        """Add the next version."""
        self.checkpoints.append(entry)
        message = entry.manifest.message
        self.learned.update((Digest(commit), message.version) for commit in message.batch)

    def cut(self, version: int) -> list[CheckpointEntry]:
        """Take back ``version`` and what came after it; their commits are learned from no more."""
        gone = self.checkpoints[version:]
        for entry in gone:
            for commit in entry.manifest.message.batch:
                self.learned.pop(Digest(commit), None)
        del self.checkpoints[version:]
        return gone

    def parent_awaited(self, message: CheckpointManifest) -> bool:
        """Tell whether the parent may still come: we have none yet, or it would supersede ours."""
        if message.version > len(self.checkpoints):
            return True
        parent = self.get(message.version - 1)
        if parent is None or parent.digest == message.parent:
            return False
        return parent.message.term < message.term

    def author_fault(self, manifest: Signed[CheckpointManifest]) -> Fault | None:
        """Check whether its signer may publish in its term."""
        message = manifest.message
        if not self._manifest.is_trainer(manifest.signer):
            return Fault(FaultCode.NOT_A_TRAINER)
        if message.term != self._manifest.term_of(manifest.signer, message.term):
            return Fault(FaultCode.OTHER_TERM, f"term {message.term} is another trainer's")
        return None

    def successor_fault(self, message: CheckpointManifest) -> Fault | None:
        """Check a version against its parent, and against the one that it would supersede."""
        known = self.get(message.version)
        if known is not None and message.term <= known.message.term:
            return Fault(FaultCode.VERSION_REUSED, f"version {message.version}")
        if message.version == 0:
            genesis = message.policy == self._manifest.genesis_policy and not message.batch
            return None if genesis and message.parent == b"" else Fault(FaultCode.WRONG_GENESIS)
        parent = self.checkpoints[message.version - 1].manifest
        if message.parent != parent.digest:
            return Fault(FaultCode.WRONG_PARENT)
        if message.term < parent.message.term:
            return Fault(FaultCode.OLD_TERM, f"term {message.term} after {parent.message.term}")
        if len(set(message.batch)) != len(message.batch):
            return Fault(FaultCode.TRAINED_TWICE)
        for commit in message.batch:
            if self.learned.get(Digest(commit), message.version) < message.version:
                return Fault(FaultCode.TRAINED_TWICE)
        return None

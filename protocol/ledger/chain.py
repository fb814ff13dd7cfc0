"""Chain of accepted versions, and the rules for the next one.

The council's final pages say who leads, and which version is final with all before it. The leader
alone adds the next version. The first version of its term follows the final one: what a former
leader has published after that is dropped.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from protocol.core.faults import Fault, FaultCode
from protocol.core.types import Digest
from protocol.messages import CheckpointManifest, Signed
from protocol.run.manifest import RunManifest

TERM_MAX = 2**52
"""Bound on terms: a later term always fits into a message."""


@dataclass(frozen=True, slots=True)
class Lead:
    """Leader and final version, by the newest final page."""

    term: int
    """Term of the trainer that leads (``RunManifest.leader``)."""
    head: bytes
    """Manifest digest of the newest final version; empty for none."""


@dataclass(frozen=True, slots=True)
class CheckpointEntry:
    """An accepted version and the time of its acceptance, in unix seconds."""

    manifest: Signed[CheckpointManifest]
    taken_at: float = float("-inf")
    final_epoch: int = -1
    """Epoch of the newest final page at that time; -1 for none, and for a version that was accepted
    because it is final, or before a restart."""


class Chain:
    """Accepted versions by number, and the commits that they learned from."""

    def __init__(self, manifest: RunManifest) -> None:
        self._manifest = manifest
        self._async_level = manifest.grpo.async_level
        self.checkpoints: list[CheckpointEntry] = []
        self.learned: dict[Digest, int] = {}
        """Version that learned from each commit."""
        self._places: dict[bytes, int] = {b"": -1}
        """Version of each manifest digest; the parent of version 0 is version -1."""
        self.final = -1
        """Newest version that a final page has named here. No later page takes it back."""

    @property
    def head(self) -> Signed[CheckpointManifest] | None:
        """The newest version, or None before the genesis policy is known."""
        return self.checkpoints[-1].manifest if self.checkpoints else None

    @property
    def version(self) -> int:
        """Newest version, -1 before the first."""
        return len(self.checkpoints) - 1

    def get(self, version: int) -> Signed[CheckpointManifest] | None:
        """Return the signed manifest of ``version`` if it is known."""
        known = 0 <= version < len(self.checkpoints)
        return self.checkpoints[version].manifest if known else None

    def place(self, digest: bytes) -> int | None:
        """Return the version with this manifest digest, or -1 for the parent of version 0."""
        return self._places.get(digest)

    def is_taken(self, digest: bytes) -> bool:
        """Return whether the version with this manifest digest is accepted; true for ``b""``."""
        return digest in self._places

    def is_current(self, version: int, digest: bytes) -> bool:
        """Return whether the next version or a later one may learn from rollouts of a version.

        ``digest`` is that of its manifest. A version that is not known yet may be of this chain.
        """
        if version < self.version - self._async_level:
            return False
        known = self.get(version)
        return known is None or known.digest == digest

    def replace(
        self, branch: Sequence[Signed[CheckpointManifest]], now: float, final_epoch: int = -1
    ) -> list[Signed[CheckpointManifest]]:
        """Append checked versions in place of those with their numbers and all later ones.

        ``final_epoch``: that of ``CheckpointEntry``. Return the removed versions; their commits
        count as not learned from.
        """
        removed = self.drop_from(branch[0].message.version)
        for manifest in branch:
            message = manifest.message
            assert message.version == len(self.checkpoints)
            self.checkpoints.append(CheckpointEntry(manifest, now, final_epoch))
            self._places[manifest.digest] = message.version
            self.learned.update((Digest(commit), message.version) for commit in message.batch)
        return removed

    def drop_from(self, version: int) -> list[Signed[CheckpointManifest]]:
        """Remove a version and all later ones, and return them."""
        removed = [entry.manifest for entry in self.checkpoints[version:]]
        for manifest in removed:
            del self._places[manifest.digest]
            for commit in manifest.message.batch:
                self.learned.pop(Digest(commit), None)
        del self.checkpoints[version:]
        return removed

    def outdated(self, lead: Lead) -> int | None:
        """Return the first version after the final one that a former leader published, if any."""
        final = self.place(lead.head)
        following = None if final is None or final < self.final else self.get(final + 1)
        if following is None or following.message.term >= lead.term:
            return None
        return following.message.version

    def extends_final(self, branch: Sequence[Signed[CheckpointManifest]]) -> bool:
        """Return whether a branch leaves the final version in place."""
        return branch[0].message.version > self.final

    def note_final(self, lead: Lead) -> None:
        """Note the final version, if it is here."""
        final = self.place(lead.head)
        if final is not None:
            self.final = max(self.final, final)

    def fits(self, manifest: Signed[CheckpointManifest]) -> Fault | bool:
        """Check a version and its parent; False if it is accepted or its parent is not."""
        fault = self._form_fault(manifest)
        if fault is not None:
            return fault
        if self.is_taken(manifest.digest) or not self.is_taken(manifest.message.parent):
            return False
        return self.branch_fault([manifest]) or True

    def _form_fault(self, manifest: Signed[CheckpointManifest]) -> Fault | None:
        """Check a version without knowing any other version."""
        message = manifest.message
        if not self._manifest.is_trainer(manifest.signer):
            return Fault(FaultCode.NOT_A_TRAINER)
        if message.term > TERM_MAX or self._manifest.leader(message.term) != manifest.signer:
            return Fault(FaultCode.OTHER_TERM, f"term {message.term} is not its author's")
        if message.version > self._manifest.grpo.steps:
            return Fault(FaultCode.AFTER_LAST_VERSION)
        if (message.version == 0) != (message.parent == b""):
            return Fault(FaultCode.WRONG_PARENT)
        learns = message.batch or message.page or message.omitted or message.reloaded
        genesis = message.policy == self._manifest.genesis_policy and not learns
        if message.version == 0 and not genesis:
            return Fault(FaultCode.WRONG_GENESIS)
        return None

    def branch_fault(self, branch: Sequence[Signed[CheckpointManifest]]) -> Fault | None:
        """Check consecutive versions; the parent of the first must be in this chain."""
        start = branch[0].message.version
        if self._places[branch[0].message.parent] != start - 1:
            return Fault(FaultCode.WRONG_PARENT, "its parent is not the version before")
        parent = self.get(start - 1)
        term = 0 if parent is None else parent.message.term
        learned: dict[bytes, None] = {}
        for version, manifest in enumerate(branch, start):
            message = manifest.message
            if message.version != version:
                return Fault(FaultCode.WRONG_PARENT, "its parent is not the version before")
            if message.term < term:
                return Fault(FaultCode.OLD_TERM, f"term {message.term} after {term}")
            term = message.term
            for commit in message.batch:
                if commit in learned or self.learned.get(Digest(commit), start) < start:
                    return Fault(FaultCode.TRAINED_TWICE)
                learned[commit] = None
        return None

    def takes_word_for(self, manifest: Signed[CheckpointManifest], lead: Lead) -> Fault | bool:
        """Tell whether its trainer alone can make this the newest version; its parent is known.

        False while no final page here lets it lead, or names a version that is not here.
        """
        message, known = manifest.message, self.get(manifest.message.version)
        if message.term != lead.term or not self.is_taken(lead.head):
            return False
        if known is not None and known.message.term == message.term:
            return Fault(FaultCode.VERSION_REUSED, f"version {message.version}")
        parent = self.get(message.version - 1)
        follows = parent is not None and parent.message.term == message.term
        return known is None and (follows or message.parent == lead.head)

"""Download planner: the file of a version, or a chain of patches from a version held here.

Every node keeps every ``full_every``-th version as a file, so a new node loads the last of these
and the patches since then. The file of any other version comes from its publisher alone.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from node.weights.download_progress import Form, Label
from protocol.core.types import Digest
from protocol.ledger.chain import Chain
from protocol.messages import CheckpointManifest, Encoding, Signed
from protocol.run.recipe import ShardcastSection
from roles.ports.engines import Policy

ONE_SOURCE_COST = 4
"""Cost factor of bytes that a single node uploads to all others: a guess."""


@dataclass(frozen=True, slots=True)
class DownloadStep:
    """One download: the file of a version, or ``encoding``, which may need ``base``."""

    checkpoint: Signed[CheckpointManifest]
    encoding: Encoding | None = None
    base: Policy | None = None

    @property
    def version(self) -> int:
        """The version that this download makes."""
        return self.checkpoint.message.version

    @property
    def form(self) -> CheckpointManifest | Encoding:
        """The message that names the index."""
        return self.encoding or self.checkpoint.message

    @property
    def label(self) -> Label:
        """The name of the download for display."""
        form = Form.FILE
        if self.encoding is not None:
            form = Form.PATCH if self.encoding.base else Form.PLANES
        return Label(f"version {self.version}", self.version, form, self.saved_bytes)

    @property
    def saved_bytes(self) -> int:
        """Bytes saved: length of the file minus length of the transfer."""
        return self.checkpoint.message.total_bytes - self.form.total_bytes


@dataclass(frozen=True, slots=True)
class DownloadPlan:
    """Downloads that lead to a version, in order."""

    cost_bytes: int
    legs: tuple[DownloadStep, ...]


class DownloadPlanner:
    """Planner of downloads.

    ``held`` returns a policy held here. ``useless`` has the indexes of encodings that failed. An
    encoding no shorter than its file is never used.
    """

    def __init__(
        self, chain: Chain, rules: ShardcastSection, held: Callable[[int], Policy | None]
    ) -> None:
        self._chain = chain
        self._rules = rules
        self._held = held
        self.useless: dict[Digest, None] = {}

    def to(self, version: int) -> DownloadPlan | None:
        """Return the cheapest route to a version; None when its manifest is unknown."""
        best: dict[int, DownloadPlan] = {}
        oldest = self._rules.forms_kept(self._chain.version).start
        for number in range(min(oldest, version), version + 1):
            checkpoint = self._chain.get(number)
            if checkpoint is not None and (number == version or self._held(number) is None):
                options = self._options(checkpoint, best)
                best[number] = min(options, key=lambda route: route.cost_bytes)
        return best.get(version)

    def _options(
        self, checkpoint: Signed[CheckpointManifest], before: Mapping[int, DownloadPlan]
    ) -> Iterator[DownloadPlan]:
        message = checkpoint.message
        one_source = message.version % self._rules.full_every
        file_bytes = message.total_bytes
        cost_bytes = file_bytes * (ONE_SOURCE_COST if one_source else 1)
        yield DownloadPlan(cost_bytes, (DownloadStep(checkpoint),))
        for encoding in message.encodings:
            if Digest(encoding.index) in self.useless or encoding.total_bytes >= file_bytes:
                continue
            if not encoding.base:
                yield DownloadPlan(encoding.total_bytes, (DownloadStep(checkpoint, encoding),))
                continue
            base, way = self._held(encoding.base_version), before.get(encoding.base_version)
            leg = DownloadStep(checkpoint, encoding, base)
            if base is not None and base.digest == encoding.base:
                yield DownloadPlan(encoding.total_bytes, (leg,))
            elif way is not None and way.legs[-1].checkpoint.message.policy == encoding.base:
                yield DownloadPlan(way.cost_bytes + encoding.total_bytes, (*way.legs, leg))

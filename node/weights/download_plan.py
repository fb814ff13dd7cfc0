"""How a version gets here with the fewest bytes: its file, or patches of a version that is here.

Every ``full_every``-th version is kept as a file by everybody, so a newcomer takes the last of
these and the patches since then; the file of another version comes from its publisher alone.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from node.weights.download_progress import Form, Label
from protocol.core.types import Digest
from protocol.ledger.ledger import Ledger
from protocol.messages import CheckpointManifest, Encoding, Signed
from protocol.run.recipe import ShardcastSection
from roles.ports.engines import Policy

ONE_SOURCE_COST = 4
"""Bytes that one node gives to everybody count so many times: a guess."""


@dataclass(frozen=True, slots=True)
class DownloadStep:
    """One download: a version's file as it is, or ``encoding``, against ``base`` if it has one."""

    checkpoint: Signed[CheckpointManifest]
    encoding: Encoding | None = None
    base: Policy | None = None

    @property
    def version(self) -> int:
        """The version that is here after it."""
        return self.checkpoint.message.version

    @property
    def form(self) -> CheckpointManifest | Encoding:
        """What names the index."""
        return self.encoding or self.checkpoint.message

    @property
    def label(self) -> Label:
        """What people see of its download."""
        form = Form.FILE
        if self.encoding is not None:
            form = Form.PATCH if self.encoding.base else Form.PLANES
        return Label(f"version {self.version}", self.version, form, self.spared_bytes)

    @property
    def spared_bytes(self) -> int:
        """How much longer the file is than what travels."""
        return self.checkpoint.message.total_bytes - self.form.total_bytes


@dataclass(frozen=True, slots=True)
class DownloadPlan:
    """The legs to a version, the next one to take first."""

    cost_bytes: int
    legs: tuple[DownloadStep, ...]


class DownloadPlanner:
    """Finds what to download next.

    ``held`` returns a policy that is here. Encodings whose index is in ``useless`` have failed;
    those that are no shorter than their file are never taken.
    """

    def __init__(
        self, ledger: Ledger, rules: ShardcastSection, held: Callable[[int], Policy | None]
    ) -> None:
        self._ledger = ledger
        self._rules = rules
        self._held = held
        self.useless: dict[Digest, None] = {}

    def to(self, version: int) -> DownloadPlan | None:
        """Return the cheapest way to a version; None when its manifest is not known."""
        best: dict[int, DownloadPlan] = {}
        oldest = self._rules.forms_kept(self._ledger.version).start
        for number in range(min(oldest, version), version + 1):
            checkpoint = self._ledger.checkpoint(number)
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

"""Members that do not check: counts of verdicts that contradict their committees.

A member that accepts without a check states invented witness values, and its committee contradicts
it. The certificate of the larger committee carries such a verdict as a dissent. This table counts,
for each validator, the dissents among its last verdicts in accepted certificates. Nodes with the
same certificates count the same. Members propose and approve the removal of a named validator.
"""

from collections.abc import Iterable

from protocol.core.containers import BoundedDict, SizeGauge
from protocol.core.types import Digest, PeerId
from protocol.messages import COUNCIL_MAX

VERDICTS_COUNTED = 64
"""Last verdicts of a validator that count."""

DISSENTS_MAX = 5
"""Dissents among them that are no proof. An honest verdict is a dissent with a probability of at
most 0.002, twice that of a disagreement of two honest verdicts. Six of 64 then have a probability
of 5e-9. A validator that always invents its values is named at the sixth."""

VALIDATORS_MAX = 4 * COUNCIL_MAX
"""Validators that are counted: the members of the last councils."""


class DissentTable:
    """Agreeing and dissenting verdicts of each validator, in the order of their pages."""

    def __init__(self) -> None:
        self._counted = BoundedDict[PeerId, dict[tuple[int, Digest], bool]](VALIDATORS_MAX)
        """By validator and (epoch of the page, commit): whether the verdict is a dissent."""
        self.named = BoundedDict[PeerId, None](VALIDATORS_MAX)
        """Validators with too many dissents, in the order of discovery."""
        self.tables = (
            SizeGauge(
                "counted_verdicts",
                VERDICTS_COUNTED * VALIDATORS_MAX,
                lambda: sum(map(len, self._counted.values())),
            ),
        )

    def count(
        self, epoch: int, commit: Digest, agreeing: Iterable[PeerId], dissenting: Iterable[PeerId]
    ) -> None:
        """Count the verdicts of a certificate whose page is of ``epoch``.

        It replaces an earlier certificate of the same commit and epoch.
        """
        for counted in self._counted.values():
            counted.pop((epoch, commit), None)
        for validator in agreeing:
            self._set(validator, (epoch, commit), is_dissent=False)
        for validator in dissenting:
            self._set(validator, (epoch, commit), is_dissent=True)

    def _set(self, validator: PeerId, key: tuple[int, Digest], *, is_dissent: bool) -> None:
        counted = self._counted.get(validator)
        if counted is None:
            counted = self._counted[validator] = {}
        counted[key] = is_dissent
        if len(counted) > VERDICTS_COUNTED:
            del counted[min(counted)]
        if sum(counted.values()) > DISSENTS_MAX and validator not in self.named:
            self.named[validator] = None

    def verdicts_of(self, validator: PeerId) -> tuple[int, int]:
        """Return the number of counted verdicts of a validator, and of dissents among them."""
        counted = self._counted.get(validator, {})
        return len(counted), sum(counted.values())

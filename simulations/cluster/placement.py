"""Placement of nodes: region, access line and hardware, dealt by the scenario's shares.

Dealing by the largest deficit gives every class its share of any number of nodes, also of nodes
that join later.
"""

from collections.abc import Mapping
from typing import TypeVar

from simulations.scenario.plans import RoleName
from simulations.scenario.scenario import BYTES_PER_MBIT, Compute, LineClass, Scenario

T = TypeVar("T")


class Placement:
    """Deals machines to the nodes of one scenario."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._dealt: dict[str, dict[str, int]] = {}
        """Deck to the count of each name dealt."""

    def region(self, role: RoleName) -> str:
        """Return the region of the next node of a role."""
        return self._deal(f"region/{role}", self._scenario.network.regions)

    def line(self, role: RoleName) -> tuple[LineClass, bool]:
        """Return the access line of the next node of a role, and whether it is behind NAT."""
        classes = {item.name: item for item in self._scenario.lines if role in item.roles}
        shares = {name: item.share for name, item in classes.items()}
        line = classes[self._deal(f"line/{role}", shares)]
        deck = {"open": 1 - line.nat_share, "nat": line.nat_share}
        return line, self._deal(f"nat/{role}/{line.name}", deck) == "nat"

    def compute(self, role: RoleName) -> Compute:
        """Return the hardware of the next node of a role."""
        classes = {item.name: item for item in self._scenario.compute if role in item.roles}
        if not classes:
            return Compute()
        shares = {name: item.share for name, item in classes.items()}
        return classes[self._deal(f"compute/{role}", shares)]

    def _deal(self, deck: str, shares: Mapping[str, float]) -> str:
        """Return the name that is furthest behind its share in ``deck``; the first of equals."""
        dealt = self._dealt.setdefault(deck, dict.fromkeys(shares, 0))
        total = sum(shares.values()) or 1.0
        count = 1 + sum(dealt.values())
        name = max(shares, key=lambda name: shares[name] / total * count - dealt[name])
        dealt[name] += 1
        return name


def bytes_per_second(mbit: float) -> float:
    """Convert a line's capacity from Mbit/s."""
    return mbit * BYTES_PER_MBIT

"""Seats of an era: drawn by a beacon in proportion to certified work.

Each seat is drawn on its own, so work that is split over many keys wins as many seats as under one
key. The genesis has a share of the draw that falls from era to era to a third.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import accumulate

from protocol.core.crypto import digest
from protocol.core.types import Digest, PeerId

ERAS_OF_WORK = 2
"""Eras before an era in which a key must have certified work to be drawn for it."""

GENESIS_SIXTHS_MIN = 2
"""Share of the genesis in the draws, in sixths, from the fourth era after the first draw on."""


def genesis_sixths(era: int) -> int:
    """Return the share of the genesis in the draw of an era, in sixths: 4, 3 and then 2."""
    return max(GENESIS_SIXTHS_MIN, 6 - era)


def drawn_seats(
    tokens: Mapping[PeerId, int], genesis: Sequence[PeerId], era: int, beacon: Digest, seats: int
) -> dict[PeerId, int]:
    """Return the seats of each key that wins any; empty without work.

    ``tokens`` are the certified tokens of the keys that worked in each of the eras before. Integers
    only: the result is the same on every machine.
    """
    work, share = sum(tokens.values()), genesis_sixths(era)
    if not work:
        return {}
    weights = Counter({peer: count * (6 - share) * len(genesis) for peer, count in tokens.items()})
    for peer in genesis:
        weights[peer] += work * share
    peers = sorted(weights)
    bounds = list(accumulate(weights[peer] for peer in peers))
    drawn: Counter[PeerId] = Counter()
    for seat in range(seats):
        point = digest(b"prime-node/seat" + beacon + seat.to_bytes(2, "big"))
        drawn[peers[bisect_right(bounds, int.from_bytes(point, "big") % bounds[-1])]] += 1
    return dict(drawn)

"""Directory keys under which members are listed; their number grows with the swarm.

The dictionary under a key is sent as a whole, so a key has room for a few hundred owners. One key
serves the first hundred members, and ``2^bits`` keys, or buckets, serve more. A member's bucket
follows from its id and the run's, so each member has one bucket for each ``bits``. An attacker that
fills or hides one bucket does not reach the others, which are stored elsewhere in the directory.
"""

from functools import cached_property

from protocol.core.crypto import digest
from protocol.core.rng import Rng
from protocol.core.types import MEMBERS_MAX, PeerId, RunId

MEMBERS_PER_BUCKET = 96
"""On average; the rest of a key's room absorbs chance and members that just joined."""

OWNERS_PER_KEY_MAX = 240
"""At 4 KiB each (``node.live.records``) they fit the 1 MiB of one p2pd message."""

BESIDE = (0, 0, 1, 0, -1)
"""Cyclic offsets to our own ``bits``: other nodes count a few members more or less."""


def bits_for(members: int) -> int:
    """Return the number of bits that select a member's bucket in a swarm of this size."""
    buckets = -(-members // MEMBERS_PER_BUCKET)
    return max(0, buckets - 1).bit_length()


BITS_MAX = bits_for(MEMBERS_MAX)


class Buckets:
    """The keys of one run."""

    def __init__(self, run_id: RunId) -> None:
        self._run_id = run_id

    @cached_property
    def _numbers(self) -> dict[str, tuple[int, int]]:
        """Bits and number of each key's bucket; only a directory needs them all."""
        numbered = ((bits, n) for bits in range(BITS_MAX + 1) for n in range(1 << bits))
        return {self.key(bits, number): (bits, number) for bits, number in numbered}

    @property
    def keys(self) -> tuple[str, ...]:
        """All keys that may ever be used."""
        return tuple(self._numbers)

    def key(self, bits: int, number: int) -> str:
        """Return the key of a bucket."""
        return f"{self._run_id.hex()}/members/{bits}/{number}"

    def key_of(self, peer: PeerId, bits: int) -> str:
        """Return the key under which ``peer`` is listed."""
        return self.key(bits, self._number_of(peer, bits))

    def may_list(self, key: str, peer: PeerId) -> bool:
        """Return whether ``peer`` may be listed under ``key``, one of ``keys``."""
        bits, number = self._numbers[key]
        return self._number_of(peer, bits) == number

    def _number_of(self, peer: PeerId, bits: int) -> int:
        place = digest(b"prime-node/bucket" + self._run_id + peer.encode())
        return int.from_bytes(place[:2], "big") >> (16 - bits)


class BucketReader:
    """Selects the next bucket to read.

    It is random among those of our own ``bits``, and cyclically of one bit more or less. A node
    that joins a large swarm knows too few members: if a bucket of its own ``bits`` is empty, it
    continues with more bits.
    """

    def __init__(self, buckets: Buckets, rng: Rng) -> None:
        self._buckets = buckets
        self._rng = rng
        self._turn = 0
        self._bits = 0
        self._climbs = False

    def next(self, members: int) -> str:
        """Return the key to read in a swarm in which we know ``members``."""
        if self._climbs and self._bits < BITS_MAX:
            self._bits += 1
        else:
            own, beside = bits_for(members), BESIDE[self._turn % len(BESIDE)]
            self._turn += 1
            self._bits = min(max(own + beside, 0), BITS_MAX)
            self._climbs = self._bits == own
        return self._buckets.key(self._bits, self._rng.below(1 << self._bits))

    def found(self) -> None:
        """Record that the last read bucket had entries."""
        self._climbs = False

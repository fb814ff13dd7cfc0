"""Which member a node dials next, of those whose records say that they can be dialled."""

from collections.abc import Callable, Collection
from itertools import islice

from node.membership.address_book import AddressBook
from node.membership.anchors import crowded, network_of
from protocol.membership import Roster
from protocol.rng import Rng
from protocol.types import PeerId
from roles.ports.clock import Clock

AGAIN_SECONDS = 15.0
"""Until a member is dialled again."""

LOOKED_AT_MAX = 1024
"""Members looked at for one to dial: a millisecond or two."""


class Candidates:
    """Draws members from a roster, ``own`` never; none before the run is known."""

    def __init__(
        self, own: PeerId, roster: Roster | None, book: AddressBook, clock: Clock, rng: Rng
    ) -> None:
        self._own = own
        self._roster = roster
        self._book = book
        self._clock = clock
        self._rng = rng
        self._dialled_at: dict[PeerId, float] = {}

    def draw(
        self,
        now: float,
        connected: Collection[PeerId],
        chosen: Collection[PeerId],
        wanted: Callable[[PeerId], bool],
    ) -> PeerId | None:
        """Return a wanted member to dial, the first one from a random place in the roster on.

        One of a network in which we have not chosen enough yet, if there is such a member.
        Not a sample of all of them: looking at a thousand members to take two costs more than the
        rest of a table's work.
        """
        roster, wall_now = self._roster, self._clock.now()
        if roster is None:
            return None
        before = now - AGAIN_SECONDS
        self._dialled_at = {peer: at for peer, at in self._dialled_at.items() if at > before}
        full: frozenset[str] | None = None
        second_best = None
        some = roster.peers_from(self._rng.below(max(1, len(roster))))
        for peer in islice(some, LOOKED_AT_MAX):
            if peer in connected or peer in self._dialled_at or not wanted(peer):
                continue
            member = roster.get(peer)
            reachable = member is not None and member.record.message.reachable
            if reachable and peer != self._own and roster.is_live(peer, wall_now):
                if full is None:
                    full = crowded(map(self._network_of, chosen))
                if not full or self._network_of(peer) not in full:
                    self._dialled_at[peer] = now
                    return peer
                second_best = second_best or peer
        if second_best is not None:
            self._dialled_at[second_best] = now
        return second_best

    def _network_of(self, peer: PeerId) -> str | None:
        return network_of(self._book.addresses_of(peer))

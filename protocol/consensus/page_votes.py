"""Votes on pages by member and epoch, and the votes for pages that are not here."""

from collections.abc import Collection, Iterator, Mapping
from types import MappingProxyType

from protocol.core.types import PeerId
from protocol.messages import PageVote, Signed

VOTED_EPOCHS_MAX = 64
"""Newest epochs of which the votes of one member are kept."""

_NONE: Mapping[bytes, Signed[PageVote]] = MappingProxyType({})


class CastVotes:
    """Votes of the members of a council; each member can fill only its own part."""

    def __init__(self) -> None:
        self._cast: dict[PeerId, dict[int, dict[bytes, Signed[PageVote]]]] = {}
        self._loose: dict[bytes, dict[PeerId, Signed[PageVote]]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._cast.values()))

    def of(self, voter: PeerId, epoch: int) -> Mapping[bytes, Signed[PageVote]]:
        """Return the votes of a member in an epoch, by page."""
        return self._cast.get(voter, {}).get(epoch, _NONE)

    def add(self, vote: Signed[PageVote], *, is_loose: bool) -> None:
        """Keep a vote; ``is_loose``: its page is not here."""
        voter, page = vote.signer, vote.message.page
        epochs = self._cast.setdefault(voter, {})
        epochs.setdefault(vote.message.epoch, {})[page] = vote
        if is_loose:
            self._loose.setdefault(page, {})[voter] = vote
        if len(epochs) > VOTED_EPOCHS_MAX:
            for old in epochs.pop(min(epochs)):
                self._loose.get(old, {}).pop(voter, None)
                if not self._loose.get(old, True):
                    del self._loose[old]

    def newest(self, voter: PeerId) -> Signed[PageVote] | None:
        """Return a vote of a member in its newest epoch."""
        epochs = self._cast.get(voter)
        return next(iter(epochs[max(epochs)].values())) if epochs else None

    def loose(self) -> Iterator[Signed[PageVote]]:
        """Yield the votes for pages that are not here."""
        for votes in self._loose.values():
            yield from votes.values()

    def loose_voters(self, page: bytes) -> Collection[PeerId]:
        """Return the members that voted for a page that is not here."""
        return self._loose.get(page, ())

    def take_loose(self, page: bytes) -> dict[PeerId, Signed[PageVote]]:
        """Remove and return the votes for a page that has arrived."""
        return self._loose.pop(page, {})

    def put_back(self, page: bytes, votes: dict[PeerId, Signed[PageVote]]) -> None:
        """Keep the votes for a page that is dropped."""
        kept = {
            peer: one for peer, one in votes.items() if page in self.of(peer, one.message.epoch)
        }
        if kept:
            self._loose[page] = kept

    def retain(self, epoch: int) -> None:
        """Forget the votes of the epochs up to ``epoch``."""
        for epochs in self._cast.values():
            for old in [number for number in epochs if number <= epoch]:
                del epochs[old]
        wanted = {
            page for epochs in self._cast.values() for cast in epochs.values() for page in cast
        }
        self._loose = {page: votes for page, votes in self._loose.items() if page in wanted}

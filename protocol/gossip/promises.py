"""Messages that peers offered and were asked for: who offers what it does not send breaks its word.

One random id of each IWANT is waited for, as go-libp2p-pubsub does: lies are found out in the mean,
at the cost of one entry however much is asked for.
"""

from collections.abc import Sequence

from protocol.containers import BoundedDict
from protocol.gossip.score_params import ScoreParams
from protocol.rng import Rng
from protocol.types import PeerId


class Promises:
    """Until when each message is waited for, by peer."""

    def __init__(self, params: ScoreParams, rng: Rng) -> None:
        self._params = params
        self._rng = rng
        self._due = BoundedDict[bytes, dict[PeerId, float]](params.promises_max, "promises")
        self.tables = (self._due,)

    def __len__(self) -> int:
        return len(self._due)

    def add(self, peer: PeerId, message_ids: Sequence[bytes], now: float) -> None:
        """Wait for one of the messages asked for; a promise that stands is not prolonged."""
        message_id = message_ids[self._rng.below(len(message_ids))]
        self._due.setdefault(message_id, {}).setdefault(peer, now + self._params.promise_seconds)

    def fulfil(self, message_id: bytes) -> None:
        """Note that a message has come: whoever brought it, the others need not."""
        self._due.pop(message_id, None)

    def take_broken(self, now: float) -> list[PeerId]:
        """Return who broke a promise, once for each, and forget those."""
        broken: list[PeerId] = []
        for message_id, peers in list(self._due.items()):
            late = [peer for peer, due in peers.items() if now > due]
            broken += late
            for peer in late:
                del peers[peer]
            if not peers:
                del self._due[message_id]
        return broken

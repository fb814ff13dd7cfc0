"""Who brought which message, for the scores: the first, those in time, and the invalid ones."""

from collections.abc import Iterable
from dataclasses import dataclass

from protocol.containers import BoundedDict
from protocol.gossip.score_params import ScoreParams
from protocol.gossip.scores import Scores
from protocol.types import PeerId


@dataclass(frozen=True, slots=True)
class _Judged:
    valid: bool
    at: float
    senders: dict[PeerId, None]


class Deliveries:
    """Remembers verdicts, so that late copies count too: each peer's first one of a message."""

    def __init__(self, params: ScoreParams, scores: Scores) -> None:
        self._params = params
        self._scores = scores
        self._judged = BoundedDict[bytes, _Judged](params.judged_max, "judged")
        self.tables = (self._judged,)

    def accepted(
        self, message_id: bytes, topic: str, senders: Iterable[PeerId], now: float
    ) -> None:
        """Take a valid message and who brought it so far, in order; nobody for our own."""
        known = dict.fromkeys(senders)
        for number, peer in enumerate(known):
            if number == 0:
                self._scores.first_delivery(peer, topic)
            else:
                self._scores.mesh_delivery(peer, topic)
        if self._params.topic.withholding_counts:  # else a late copy has no effect
            self._judged[message_id] = _Judged(True, now, known)

    def rejected(
        self, message_id: bytes, topic: str, senders: Iterable[PeerId], now: float
    ) -> None:
        """Take an invalid message and who brought it so far."""
        known = dict.fromkeys(senders)
        for peer in known:
            self._scores.invalid(peer, topic)
        self._judged[message_id] = _Judged(False, now, known)

    def repeated(self, message_id: bytes, topic: str, peer: PeerId, now: float) -> None:
        """Take a copy of a message that may have been judged."""
        judged = self._judged.get(message_id)
        if judged is None or peer in judged.senders:
            return
        judged.senders[peer] = None
        if not judged.valid:
            self._scores.invalid(peer, topic)
        elif now - judged.at <= self._params.topic.mesh_deliveries_window_seconds:
            self._scores.mesh_delivery(peer, topic)

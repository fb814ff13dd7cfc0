"""Comparison of this machine's clock with other clocks, by the dates of gossiped records.

A node with a wrong clock rejects honest records, or peers reject its own, with no other sign of the
cause. One peer with a wrong clock is that peer's fault: only a majority says something about ours.
Keys are free, so the votes are the genesis keys, whose records arrive even without addresses, and
the network of each connected peer. A peer cannot date another's record ahead. A peer that carries
all of a node's traffic can delay records, but such a node is eclipsed in any case.
"""

import math
from collections import defaultdict
from collections.abc import Hashable

import structlog

from node.context import NodeContext
from node.network.connections.peer_selection import network_of_peer
from node.network.streams.deadline import loop_time
from node.replication.inbox import MessageOrigin
from protocol.core.containers import BoundedDict
from protocol.core.types import PeerId
from protocol.membership.clock_offsets import PEERS_MAX, ClockOffsets
from protocol.membership.roster import CLOCK_SKEW_SECONDS_MAX
from protocol.messages import NodeRecord
from protocol.replica.received import Received

log = structlog.get_logger()

_CONDITION = "clock"

LOOK_EPOCHS = 0.5
"""Interval of comparisons: each scans all connected peers."""


class ClockWatch:
    """Detector of a wrong local clock: sets a condition, logs once, and fills ``wrong``."""

    def __init__(self, context: NodeContext) -> None:
        epochs = context.replica.manifest.epochs
        self._context = context
        self._epoch_seconds = epochs.seconds
        # Gossip may delay a record by an epoch, which makes its author's clock seem late.
        self._late_seconds = CLOCK_SKEW_SECONDS_MAX + epochs.seconds
        kept_seconds = epochs.record_epochs * epochs.seconds
        self._offsets = ClockOffsets(self._late_seconds, kept_seconds)
        self._looked_at = -math.inf
        self._told = BoundedDict[PeerId, None](PEERS_MAX)
        """Peers with a wrong clock that the log has already named."""
        self.wrong = ""
        """Error of the local clock in words, empty when none is known."""
        context.tables.register(*self._offsets.tables)

    def note(self, received: Received, source: MessageOrigin) -> None:
        """Note the date of a gossiped record, whether or not the replica accepted it."""
        signed = received.signed
        if source is not MessageOrigin.GOSSIP or signed is None:
            return
        if isinstance(signed.message, NodeRecord) and self._counts(signed.signer):
            monotonic = loop_time()
            self._offsets.note(signed.signer, signed.message.issued_at, monotonic)
            if monotonic >= self._looked_at + LOOK_EPOCHS * self._epoch_seconds:
                self._look(monotonic)

    def _counts(self, peer: PeerId) -> bool:
        named = self._context.replica.manifest.is_of_genesis(peer)
        return named or peer in self._context.peers.connected

    def _networks(self) -> dict[Hashable, list[PeerId]]:
        """Return the peers that count, grouped by vote: a genesis key, or a network."""
        genesis = self._context.replica.manifest.genesis
        named = dict.fromkeys(map(PeerId, (*genesis.trainers, *genesis.validators)))
        networks: dict[Hashable, list[PeerId]] = defaultdict(list)
        for peer in dict.fromkeys((*named, *self._context.peers.connected)):
            networks[peer if peer in named else network_of_peer(self._context, peer)].append(peer)
        return networks

    def _look(self, monotonic: float) -> None:
        now = self._context.ports.clock.now()
        self._looked_at = monotonic
        networks = self._networks()
        estimate = self._offsets.estimate(networks, now, monotonic)
        ahead_seconds = 0.0 if estimate is None else estimate.ahead_seconds
        own_is_right = -self._late_seconds <= ahead_seconds <= CLOCK_SKEW_SECONDS_MAX
        if estimate is None or own_is_right:
            self._clear()
            peers = [] if estimate is None else [one for each in networks.values() for one in each]
            for peer in peers:
                self._tell(peer, self._offsets.ahead_seconds(peer, now, monotonic))
            return
        side = "behind" if ahead_seconds > 0 else "ahead of"
        text = (
            f"your clock seems {abs(ahead_seconds):.0f} s {side} {estimate.peers} peers (median); "
            "correct it (e.g. timedatectl set-ntp true)"
        )
        if not self.wrong:
            log.warning("clock_wrong", reason=text)
        self.wrong = text
        self._context.conditions.set(_CONDITION, text)

    def _clear(self) -> None:
        if self.wrong:
            log.info("clock_right")
            self._context.conditions.clear(_CONDITION)
        self.wrong = ""

    def _tell(self, peer: PeerId, ahead_seconds: float | None) -> None:
        """Log once a peer whose clock differs from ours and from the majority."""
        late_seconds = self._late_seconds
        if ahead_seconds is None or -late_seconds <= ahead_seconds <= CLOCK_SKEW_SECONDS_MAX:
            self._told.pop(peer, None)
        elif peer not in self._told:
            self._told[peer] = None
            log.info("peer_clock_wrong", peer=peer[-8:], ahead_seconds=round(ahead_seconds))

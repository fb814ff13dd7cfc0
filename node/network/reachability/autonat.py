"""Reachability of this node: trusted members dial it back (as in libp2p's AutoNAT).

The observers publish their results (``node.network.reachability.observations``). The node uses them
only to announce whether dialling it can succeed. It assumes that it is reachable until enough
observers failed to connect.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from itertools import islice

import structlog

from node.context import NodeContext
from node.local.addresses import host_of, is_local
from node.network.reachability.observations import ADDRESSES_MAX, ANSWERED, SILENT
from node.network.streams.deadline import loop_time, within
from node.network.streams.framing import write_frame
from node.network.streams.protocols import DIAL_BACK, SAMPLE_BYTES_MAX
from protocol.core.types import PeerId
from roles.ports.transport import Stream, TransportError

log = structlog.get_logger()

OBSERVERS = 8
"""Number of observers: three results are needed, and some members are gone or busy; a guess."""

RENEW_SHARE = 0.75
"""Fraction of an observation's lifetime after which it is renewed, before all lapse together."""

LOOKED_AT_MAX = 256
"""Records inspected per epoch to find observers."""

DOUBTERS_MIN = 2
"""Minimum of failed dial-backs before the node counts as unreachable."""

_PIECE = bytes(64 * 1024)
"""Part of a bandwidth sample; encryption on the connection rules out compression on the way."""


class Reachability:
    """Requests dial-backs and evaluates the results.

    ``finding_seconds`` is the lifetime of an observation. ``upload_bytes_per_second`` is the
    operator's limit; a sample takes at most one second of it.
    """

    def __init__(
        self,
        context: NodeContext,
        finding_seconds: float,
        upload_bytes_per_second: int | None,
    ) -> None:
        self._context = context
        self._renew_seconds = RENEW_SHARE * finding_seconds
        self._sample_bytes = min(SAMPLE_BYTES_MAX, upload_bytes_per_second or SAMPLE_BYTES_MAX)
        self._rng = context.ports.rng.child("witnesses")
        self._answers: dict[PeerId, tuple[bool, float]] = {}
        self._tried: dict[PeerId, float] = {}
        self._addresses: list[str] = []
        self._hidden = False
        """True if other members can dial none of our addresses."""

    @property
    def reachable(self) -> bool:
        """True if peers can connect to this node, as far as known."""
        if self._hidden:
            return False
        silent = sum(not answered for answered, _ in self._answers.values())
        return silent < DOUBTERS_MIN or 2 * silent <= len(self._answers)

    async def run(self) -> None:
        """Request dial-backs while recent results are too few, until cancelled."""
        epochs = self._context.replica.manifest.epochs
        while True:
            before = self.reachable
            self._forget()
            with suppress(TransportError):  # retried next epoch
                await self._look_at_addresses()
                if len(self._answers) < OBSERVERS:
                    await self._ask_some()
            if self.reachable is not before:
                log.info(
                    "reachability changed", reachable=self.reachable, observers=len(self._answers)
                )
            await asyncio.sleep(epochs.seconds)

    def _forget(self) -> None:
        since = loop_time() - self._renew_seconds
        self._answers = {peer: item for peer, item in self._answers.items() if item[1] >= since}
        self._tried = {peer: at for peer, at in self._tried.items() if at >= since}

    async def _look_at_addresses(self) -> None:
        """Update our addresses; a node with only local ones is unreachable without a test."""
        asking = self._context.ports.transport.addresses()
        self._addresses = list(await within(DIAL_BACK.stall_seconds, asking))
        local = all(is_local(host_of(address)) for address in self._addresses)
        self._hidden = local and not self._context.peers.in_local_swarm

    async def _ask_some(self) -> None:
        for peer in self._observers(OBSERVERS - len(self._answers)):
            await self._ask(peer, self._addresses)  # sequential: samples share our bandwidth

    def _observers(self, count: int) -> list[PeerId]:
        """Return members without a recent request, from a random roster position on."""
        replica, peers = self._context.replica, self._context.peers
        roster, now = replica.roster, self._context.ports.clock.now()
        connected, own = frozenset(peers.connected), peers.peer_id
        trusted = self._context.trust.trusted
        chosen: list[PeerId] = []
        place = self._rng.below(max(1, len(roster)))
        for peer in islice(roster.peers_from(place), LOOKED_AT_MAX):
            member = roster.get(peer)
            if len(chosen) == count or member is None:
                break
            near = peer in connected or member.record.message.reachable
            new = peer != own and peer not in self._tried
            if near and new and trusted(peer) and roster.is_live(peer, now):
                chosen.append(peer)
        return chosen

    async def _ask(self, peer: PeerId, addresses: Sequence[str]) -> None:
        assert DIAL_BACK.exchange_seconds is not None
        self._tried[peer] = loop_time()
        try:
            protocol = DIAL_BACK.on(self._context.replica.run_id)
            opening = self._context.peers.open_stream(peer, protocol)
            stream = await within(DIAL_BACK.stall_seconds, opening)
        except TransportError as error:
            log.debug("observer unreachable", peer=peer, error=str(error))
            return
        asking = dialled_back(stream, addresses, self._sample_bytes)
        try:
            answered = await within(DIAL_BACK.exchange_seconds, asking)
        except TransportError as error:
            log.debug("observer failed", peer=peer, error=str(error))
        else:
            self._answers[peer] = (answered, loop_time())
        finally:
            await stream.close()


async def dialled_back(stream: Stream, addresses: Sequence[str], sample_bytes: int) -> bool:
    """Request a dial-back; if it succeeds, send a bandwidth sample and return True.

    Raises ``TransportError`` when there is no valid response.
    """
    told = "\n".join(addresses[:ADDRESSES_MAX]).encode()
    await write_frame(stream, told[: DIAL_BACK.opener_bytes_max], length_bytes=2)
    answer = await stream.read_exactly(1)
    if answer not in (ANSWERED, SILENT):
        raise TransportError("invalid dial-back response")
    if answer == ANSWERED:
        with suppress(TransportError):  # the observer stopped reading
            for start in range(0, sample_bytes, len(_PIECE)):
                await stream.write(_PIECE[: sample_bytes - start])
    return answer == ANSWERED

"""Pull from one peer the pages that this node lacks.

A node that was away, or joins, receives the chains of the handovers after its council and of the
newest final page. Then it requests the recent notarised pages that it lacks: those that draw the
committees of recent commits, and those after the newest final page. A page carries its votes, so
this also replaces votes that gossip lost. Certificates need pages, so pages come before messages.

A node that was given a trusted page examines the handovers of each peer apart, until one shows it.
"""

import asyncio
from collections.abc import Callable

import structlog

from node.context import NodeContext
from node.network.resources.stream_limiter import StreamLimiter
from node.network.resources.upload_scheduler import UploadScheduler
from node.network.streams.deadline import loop_time, within
from node.network.streams.framing import write_frame
from node.network.streams.protocols import IDS_MAX, PAGES, REQUEST_SECONDS
from node.replication.inbox import MessageIntake
from node.replication.sync_streams import (
    SyncStreams,
    checked_ids,
    fields_of,
    ids_in,
    is_digest_or_empty,
)
from protocol.consensus.council import encode_chain
from protocol.consensus.trusted_page import TrustedPage
from protocol.core.codec import encode
from protocol.core.containers import BoundedDict
from protocol.core.faults import Fault, FaultCode
from protocol.core.types import Digest, PeerId, ValidationResult
from protocol.replica.page_intake import PageIntake
from protocol.replica.received import Received
from roles.ports.transport import Stream, TransportError

log = structlog.get_logger()

CHAINS_MAX = 16
"""Chains in one response: 0.6 MB for the largest council."""

REQUEST_BYTES_MAX = 96
NUMBER_MAX = 2**53
"""Limit of an epoch and of ids to skip, as in messages."""

EXCHANGE_SECONDS = PAGES.exchange_seconds or 0.0

OTHERS_MAX = 64
"""Peers with another history that are kept: their number is only reported."""

Take = Callable[[bytes, PeerId], Received]
"""Judges encoded notarised pages of a peer."""


class PageSync:
    """Server and client of the ``pages`` protocol of one run."""

    def __init__(
        self, context: NodeContext, inbox: MessageIntake, upload_cap: UploadScheduler
    ) -> None:
        self._peers = context.peers
        self._replica = context.replica
        self._inbox = inbox
        self._protocol = PAGES.on(context.replica.run_id)
        self._streams = SyncStreams(context, PAGES, upload_cap)
        self._bounded = StreamLimiter(self._serve, PAGES, context.trust)
        context.tables.register(*self._bounded.tables)
        self.other_histories = BoundedDict[PeerId, float](OTHERS_MAX)
        """Peers that showed a history without the awaited page, and when they last did."""

    async def start(self) -> None:
        """Register the protocol handler."""
        await self._peers.handle(self._protocol, self._bounded)

    async def pull(self, peer: PeerId) -> None:
        """Pull what ``peer`` has and this node lacks; raises ``TransportError``."""
        await within(EXCHANGE_SECONDS, self._pull(peer))

    async def _pull(self, peer: PeerId) -> None:
        intake = self._replica.intake
        if intake.awaited is not None:
            await self._adopt(peer, intake.awaited)
        await self._rounds(peer, intake, self._inbox.take_chain)

    async def _adopt(self, peer: PeerId, awaited: TrustedPage) -> None:
        """Accept the handovers of a peer if they lead to the page that this node awaits.

        Until then they are kept apart: a history that is accepted cannot be replaced.
        """
        intake = self._replica.intake
        shown = intake.apart(intake.tree.handovers)
        known = len(shown.tree.handovers)

        def take(chain: bytes, sender: PeerId) -> Received:
            taken = False if awaited.is_in(shown.tree) else shown.offer_chain(chain)
            return self._inbox.judged(taken, sender)

        await self._rounds(peer, shown, take, lambda: awaited.is_in(shown.tree))
        if awaited.contradicts(shown.tree):
            self.other_histories.set_newest(peer, loop_time())
            log.warning("another_history", peer=peer, page=str(awaited))
            raise TransportError(f"the peer shows another history than that of page {awaited}")
        if not awaited.is_in(shown.tree):
            raise TransportError(f"the peer does not show page {awaited} yet")
        intake.awaited = None
        for chain in shown.tree.handovers[known:]:
            self._inbox.take_chain(encode_chain(chain), peer)

    async def _rounds(
        self,
        peer: PeerId,
        intake: PageIntake,
        take: Take,
        done: Callable[[], bool] = lambda: False,
    ) -> None:
        skip = 0
        while not done():
            chains, listed = await self._round(peer, skip, intake, take)
            if listed == IDS_MAX:
                skip += IDS_MAX
            elif chains < CHAINS_MAX:
                return

    async def _round(
        self, peer: PeerId, skip: int, intake: PageIntake, take: Take
    ) -> tuple[int, int]:
        """Pull some chains, and the pages of one list; return the length of both lists."""
        pages, streams = intake.tree, self._streams
        stream = await self._peers.open_stream(peer, self._protocol)
        try:
            known = {"council": pages.council.seat, "epoch": pages.root.epoch, "skip": skip}
            await write_frame(stream, encode(known))
            offered = _offer(await streams.read(stream, PAGES.opener_bytes_max))
            chains, ids = streams.sound(stream, offered)
            for _ in range(chains):
                await self._take(stream, take)
            wanted = [page for page in dict.fromkeys(ids) if intake.needs(page)]
            await write_frame(stream, encode({"ids": wanted}))
            for _ in wanted:
                await self._take(stream, take)
        finally:
            await stream.close()
        return chains, len(ids)

    async def _take(self, stream: Stream, take: Take) -> None:
        chain = await self._streams.read(stream, PAGES.acceptor_bytes_max)
        received = take(chain, stream.peer)
        if received.result is ValidationResult.REJECT:
            raise TransportError(f"the peer sent invalid pages: {received.fault}")
        await asyncio.sleep(0)  # let other tasks run while the buffer is full

    async def _serve(self, stream: Stream) -> None:
        await within(EXCHANGE_SECONDS, self._answer(stream))

    async def _answer(self, stream: Stream) -> None:
        streams, intake = self._streams, self._replica.intake
        request = _request(await streams.read(stream, REQUEST_BYTES_MAX, REQUEST_SECONDS))
        seat, epoch, skip = streams.sound(stream, request)
        chains = intake.chains_after(seat, epoch) if not skip else []
        recent = intake.recent(seat, epoch, self._replica.named_pages())
        # The pages of later councils could not be checked yet.
        ids = list(recent)[skip : skip + IDS_MAX] if len(chains) <= CHAINS_MAX else []
        chains = chains[:CHAINS_MAX]
        await streams.send(stream, [encode({"chains": len(chains), "ids": ids})])
        await streams.send(stream, map(encode_chain, chains))
        wanted = ids_in(await streams.read(stream, PAGES.opener_bytes_max))
        listed = set(ids)
        pages = [page for page in streams.sound(stream, wanted) if page in listed]
        await streams.send(stream, (encode_chain(recent[page].to_offer()) for page in pages))


def _request(data: bytes) -> tuple[bytes, int, int] | Fault:
    """Return the council, the epoch of the newest final page, and the number of ids to skip."""
    fields = fields_of(data)
    if isinstance(fields, Fault):
        return fields
    seat, epoch, skip = (fields.get(name) for name in ("council", "epoch", "skip"))
    if not is_digest_or_empty(seat):
        return Fault(FaultCode.BAD_FIELDS, "council")
    if type(epoch) is not int or type(skip) is not int:
        return Fault(FaultCode.BAD_FIELDS, "epoch and skip")
    if epoch < -1 or skip < 0 or max(epoch, skip) > NUMBER_MAX:
        return Fault(FaultCode.BAD_FIELDS, "epoch and skip")
    return seat, epoch, skip


def _offer(data: bytes) -> tuple[int, list[Digest]] | Fault:
    """Return the number of chains that follow, and the ids of pages."""
    fields = fields_of(data)
    if isinstance(fields, Fault):
        return fields
    chains, ids = fields.get("chains"), checked_ids(fields.get("ids"))
    if type(chains) is not int or not 0 <= chains <= CHAINS_MAX:
        return Fault(FaultCode.BAD_FIELDS, "number of chains")
    return ids if isinstance(ids, Fault) else (chains, ids)

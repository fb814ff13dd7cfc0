"""Download of one version as a state machine: selection of chunks and sources, and timeouts.

Each stripe keeps a few requests in flight to the first usable candidate of its list, the parent:

* A candidate that breaks or is late is skipped for a pause that doubles each time, then tried again
  with a single request. The next candidate in rank order takes over at once. An untrusted one that
  has sent nothing yet is late sooner than others.
* A candidate that does not have the bytes yet is retried for a few seconds.
* A candidate that sent bad bytes is reported, and never used again in this transfer.
* A request to a peer that the changed roster has removed from the candidates gets the same few
  seconds: in the new forest that peer may be waiting for us.
* A stripe with nothing left to request fetches shards of the others through its own tree, from the
  end. Each shard has one helping stripe, so all members request it where their parents do.
* Beside the trees, the end of a stripe is requested from peers that already have it: helpers first,
  drawn by capacity, so that fast peers do not idle while others wait.
* If no candidate is left, and for the later half of slow last requests, any peer that has the bytes
  is used, except the root: with slow chunks of all nodes it would never finish sending to any.
  These two set ``wait=False``: the peer must not make us wait for bytes that it may be awaiting
  from us. Its response lists the chunks it holds.

The time limit follows the time between the chunks of a stripe, doubled while the stripe stalls. So
congestion upstream does not make all nodes change parents at once. Each stripe has a timer: the
root may serve one first and the others seconds later. ``now`` is of a monotonic clock.
"""

import bisect
from collections.abc import Sequence

from protocol.core.faults import Fault, FaultCode
from protocol.core.types import PeerId
from protocol.shardcast.events import (
    Ask,
    BadSource,
    CancelRequest,
    CandidatesChanged,
    ChunkCorrupt,
    ChunkVerified,
    Effect,
    Event,
    Refusal,
    RequestFailed,
    SourceLate,
    Tick,
    TransferDone,
    TransferLimits,
)
from protocol.shardcast.index import ShardIndex
from protocol.shardcast.transfer_state import ChunkRequest, RetryState, SourceState, StripeState


class Transfer:
    """State of one download; ``missing`` holds, per shard, the numbers of the missing chunks."""

    def __init__(
        self,
        index: ShardIndex,
        candidates: Sequence[Sequence[PeerId]],
        missing: Sequence[Sequence[int]],
        limits: TransferLimits | None = None,
        *,
        root: PeerId | None = None,
        helpers: Sequence[PeerId] = (),
        untrusted: frozenset[PeerId] = frozenset(),
    ) -> None:
        self._index = index
        self._root = root
        self._helpers = tuple(helpers)
        self._untrusted = untrusted
        self._limits = limits or TransferLimits()
        self._chunks_per_request = max(1, self._limits.request_bytes // index.chunk_bytes)
        self._missing = [sum(1 << chunk for chunk in dict.fromkeys(chunks)) for chunks in missing]
        self._unasked = list(self._missing)
        self._stripes = [StripeState(tuple(order)) for order in candidates]
        self._ahead = StripeState(())
        self._lanes = [*self._stripes, self._ahead]
        self._peers: dict[PeerId, SourceState] = {}
        self._sources: dict[PeerId, SourceState] = {}  # those of them in a current list
        self._requests: dict[int, ChunkRequest] = {}
        self._requests_made = 0
        self._finished = False
        self._ahead_at: float | None = None
        self._note_peers()
        for shard, mask in enumerate(self._missing):
            if mask:
                self._stripes[shard % len(self._stripes)].shards.append(shard)
        self.bytes_missing = sum(
            index.chunk_length(shard, chunk)
            for shard, chunks in enumerate(missing)
            for chunk in dict.fromkeys(chunks)
        )

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Process one event and return the effects; nothing follows ``TransferDone``."""
        if self._finished:
            return []
        effects: list[Effect] = []
        if isinstance(event, ChunkVerified):
            self._chunk_good(event, now, effects)
        elif isinstance(event, ChunkCorrupt):
            self._chunk_bad(event, effects)
        elif isinstance(event, RequestFailed):
            self._request_failed(event, now)
        elif isinstance(event, CandidatesChanged):
            self._candidates_changed(event)
        else:
            self._give_up_late(now, effects)
        if not self.bytes_missing:
            self._finished = True
            return [
                *effects,
                *(CancelRequest(request) for request in self._requests),
                TransferDone(),
            ]
        self._fill(now, effects)
        if isinstance(event, Tick):
            self._ask_ahead(now, effects)
            self._hedge(now, effects)
        return effects

    # Events

    def _chunk_good(self, event: ChunkVerified, now: float, effects: list[Effect]) -> None:
        shard, bit = event.shard, 1 << event.chunk
        if self._missing[shard] & bit:
            self._missing[shard] &= ~bit
            if not self._missing[shard]:
                for peer in self._peers.values():
                    peer.holdings.pop(shard, None)
            self.bytes_missing -= self._index.chunk_length(shard, event.chunk)
            self._set_unasked(shard, self._unasked[shard] & ~bit)
        if event.request in self._requests:
            self._credit(self._requests[event.request], now)
        for number, request in list(self._requests.items()):
            if request.ask.shard == shard:
                request.mask &= ~bit
                if not request.mask:
                    self._end(number)
                    if number != event.request:
                        effects.append(CancelRequest(number))

    def _credit(self, request: ChunkRequest, now: float) -> None:
        peer, stripe = self._peers[request.ask.peer], self._lanes[request.ask.stripe]
        stripe.gap.measure(max(0.0, now - request.touched))
        request.touched = now
        peer.failures, peer.paused_until, peer.delivered = 0, float("-inf"), True
        stripe.late = 0
        stripe.holds.pop(request.ask.peer, None)

    def _chunk_bad(self, event: ChunkCorrupt, effects: list[Effect]) -> None:
        request = self._requests.get(event.request)
        if request is None:
            return
        culprit = request.ask.peer
        self._peers[culprit].blamed = True
        place = f"shard {request.ask.shard} chunk {event.chunk}"
        effects.append(BadSource(culprit, Fault(FaultCode.BAD_CHUNK, place)))
        self._end(event.request)
        for number, other in list(self._requests.items()):
            if other.ask.peer == culprit:
                self._end(number)
                effects.append(CancelRequest(number))

    def _request_failed(self, event: RequestFailed, now: float) -> None:
        request = self._requests.get(event.request)
        if request is None:
            return
        self._end(event.request)
        if event.refusal is not Refusal.UNAVAILABLE:
            self._peers[request.ask.peer].pause(now, self._limits)
        elif request.ask.wait:
            holds = self._lanes[request.ask.stripe].holds
            hold = holds.setdefault(request.ask.peer, RetryState(now, now))
            patient = now - hold.since < self._limits.patience_seconds
            retry = self._limits.retry_seconds if patient else now - hold.since
            hold.retry_at = now + min(retry, self._limits.pause_seconds_max)
        else:
            until = now + self._limits.patience_seconds
            self._peers[request.ask.peer].note(request.ask.shard, event.held, until)
            if self._lanes[request.ask.stripe] is self._ahead:
                self._ahead_at = now + self._limits.ahead_seconds

    def _candidates_changed(self, event: CandidatesChanged) -> None:
        self._helpers, self._untrusted = event.helpers, event.untrusted
        for stripe, order in zip(self._stripes, event.candidates, strict=True):
            stripe.candidates = order
            stripe.holds = {peer: hold for peer, hold in stripe.holds.items() if peer in order}
        for request in self._requests.values():
            order = self._lanes[request.ask.stripe].candidates
            request.unlisted = request.ask.wait and request.ask.peer not in order
        self._note_peers()

    def _give_up_late(self, now: float, effects: list[Effect]) -> None:
        late_seconds = [
            self._late_seconds(stripe) * 2 ** min(stripe.late, 3) for stripe in self._lanes
        ]
        for number, request in list(self._requests.items()):
            waited_seconds, name = now - request.touched, request.ask.peer
            patience_seconds = late_seconds[request.ask.stripe]
            if name in self._untrusted and not self._peers[name].delivered:
                patience_seconds = min(patience_seconds, self._limits.late_seconds_untrusted)
            late = waited_seconds >= patience_seconds
            if late or (request.unlisted and waited_seconds >= self._limits.patience_seconds):
                self._end(number)
                effects.append(CancelRequest(number))
            if late:
                self._peers[name].pause(now, self._limits)
                self._lanes[request.ask.stripe].late += 1
                effects += [] if self._peers[name].delivered else [SourceLate(name)]

    # Requests

    def _fill(self, now: float, effects: list[Effect]) -> None:
        """Request missing chunks through their own stripe first, then through helping stripes."""
        for helping in (False, True):
            for number, stripe in enumerate(self._stripes):
                while stripe.in_flight < self._limits.requests_per_stripe:
                    if not (helping or stripe.shards):
                        break
                    ask = self._next_ask(number, stripe, now)
                    if ask is None:
                        break
                    effects.append(ask)

    def _next_ask(self, number: int, stripe: StripeState, now: float) -> Ask | None:
        shard = stripe.shards[0] if stripe.shards else self._to_help(number)
        if shard is None:
            return None
        wanted = self._unasked[shard]
        peer, wait = self._choose(stripe, now)
        if peer is None and not wait:
            peer, wanted = self._anyone(shard, wanted, now, ())
        if peer is None:
            return None
        return self._ask(number, peer, shard, wanted, wait=wait, now=now)

    def _to_help(self, number: int) -> int | None:
        """Return the shard for a stripe that lacks nothing: the last one that it helps with.

        Each shard has one other stripe that helps, so that all members request it where their
        parents do, and the root sends it once.
        """
        count = len(self._stripes)
        last = -1
        for ahead in range(1, count):
            for shard in reversed(self._stripes[(number - ahead) % count].shards):
                if shard // count % (count - 1) == ahead - 1:
                    last = max(last, shard)
                    break
        return None if last < 0 else last

    def _choose(self, stripe: StripeState, now: float) -> tuple[PeerId | None, bool]:
        """Return the candidate to request from, or None, and whether it may make us wait."""
        for name in stripe.candidates:
            peer = self._peers[name]
            if peer.blamed or now < peer.paused_until:
                continue
            hold = stripe.holds.get(name)
            if hold is not None and now < hold.retry_at:
                if now - hold.since < self._limits.patience_seconds:
                    return None, True
                continue
            if self._has_room(peer):
                return name, True
            if not peer.failures:
                return None, True
        return None, False

    def _anyone(
        self, shard: int, wanted: int, now: float, excluded: Sequence[PeerId]
    ) -> tuple[PeerId | None, int]:
        """Return the least busy peer of any list, except the root, and the chunks to request.

        It may have all that is ``wanted``, or has listed which.
        """
        usable = [
            (peer.in_flight, place, name, found)
            for place, (name, peer) in enumerate(self._sources.items())
            if name != self._root
            and not peer.blamed
            and now >= peer.paused_until
            and self._has_room(peer)
            and name not in excluded
            and (found := wanted & peer.held(shard, now))
        ]
        return min(usable)[2:] if usable else (None, 0)

    def _ask_ahead(self, now: float, effects: list[Effect]) -> None:
        """Request the end of the stripe that lacks most from any peer that has it.

        Such a peer is ahead of us, and its uplink is less busy than that of our parent. The quota
        is that of the finished stripes and one more, because all our parents may be slow. With a
        quota of one, a slow peer kept out faster ones: the last of 116 nodes finished after 1.8
        times the bound instead of 1.5 (``benchmarks/shardcast/makespan.py --strong 16``).
        """
        if self._ahead_at is None:
            self._ahead_at = now + self._limits.ahead_seconds
        free = 1 + sum(not stripe.shards for stripe in self._stripes)
        most = free * self._limits.requests_per_stripe
        while now >= self._ahead_at and self._ahead.in_flight < most:
            shards = max((stripe.shards for stripe in self._stripes), key=len)
            if not shards:
                return
            shard = shards[-1]
            peer, wanted = self._anyone(shard, self._unasked[shard], now, ())
            if peer is None:
                return
            effects.append(self._ask(len(self._stripes), peer, shard, wanted, wait=False, now=now))

    def _hedge(self, now: float, effects: list[Effect]) -> None:
        """Request slow chunks from a second peer when nothing else is left to request.

        Only the later half: the first peer continues where it is, and nothing is sent twice.
        """
        if any(stripe.shards for stripe in self._stripes):
            return
        for request in list(self._requests.values()):
            late_seconds = self._late_seconds(self._lanes[request.ask.stripe])
            shard, peer = request.ask.shard, request.ask.peer
            if now - request.touched < late_seconds / 2 or self._is_shared(request):
                continue
            second, wanted = self._anyone(shard, _later_half(request.mask), now, (peer,))
            if second is not None:
                ask = self._ask(request.ask.stripe, second, shard, wanted, wait=False, now=now)
                effects.append(ask)

    def _is_shared(self, request: ChunkRequest) -> bool:
        """Return whether another request covers some of the same chunks."""
        return any(
            other is not request
            and other.ask.shard == request.ask.shard
            and other.mask & request.mask
            for other in self._requests.values()
        )

    # Bookkeeping

    def _ask(
        self, stripe: int, peer: PeerId, shard: int, mask: int, *, wait: bool, now: float
    ) -> Ask:
        """Request the first run of chunks in ``mask``, and record the request."""
        first = (mask & -mask).bit_length() - 1
        run = ~(mask >> first)
        count = min((run & -run).bit_length() - 1, self._chunks_per_request)
        taken = ((1 << count) - 1) << first
        ask = Ask(self._requests_made, stripe, peer, shard, first, count, wait)
        self._requests[ask.request] = ChunkRequest(ask, taken, now)
        self._requests_made += 1
        self._peers[peer].in_flight += 1
        self._lanes[stripe].in_flight += 1
        self._set_unasked(shard, self._unasked[shard] & ~taken)
        return ask

    def _end(self, number: int) -> None:
        """Forget a request; chunks that no other request covers are missing again."""
        request = self._requests.pop(number)
        shard = request.ask.shard
        self._peers[request.ask.peer].in_flight -= 1
        self._lanes[request.ask.stripe].in_flight -= 1
        orphaned = request.mask
        for other in self._requests.values():
            if other.ask.shard == shard and other.mask & request.mask:
                orphaned &= ~other.mask
        self._set_unasked(shard, self._unasked[shard] | orphaned)

    def _set_unasked(self, shard: int, mask: int) -> None:
        shards = self._stripes[shard % len(self._stripes)].shards
        if mask and not self._unasked[shard]:
            bisect.insort(shards, shard)
        elif self._unasked[shard] and not mask:
            shards.remove(shard)
        self._unasked[shard] = mask

    def _has_room(self, peer: SourceState) -> bool:
        return peer.in_flight < (1 if peer.failures else self._limits.requests_per_peer)

    def _note_peers(self) -> None:
        listed = (name for stripe in self._stripes for name in stripe.candidates)
        names = [*self._helpers, *listed]
        self._sources = {name: self._peers.setdefault(name, SourceState()) for name in names}

    def _late_seconds(self, stripe: StripeState) -> float:
        late = stripe.gap.late_seconds
        if late is None:
            return self._limits.late_seconds_initial
        return min(max(late, self._limits.late_seconds_min), self._limits.late_seconds_max)


def _later_half(mask: int) -> int:
    """Return ``mask`` without the first half of its set bits."""
    for _ in range(mask.bit_count() // 2):
        mask &= mask - 1
    return mask

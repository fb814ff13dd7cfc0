import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.core.types import Digest, PeerId
from protocol.shardcast.events import (
    Ask,
    BadSource,
    CancelRequest,
    CandidatesChanged,
    ChunkCorrupt,
    ChunkVerified,
    Effect,
    Refusal,
    RequestFailed,
    SourceLate,
    Tick,
    TransferDone,
    TransferLimits,
)
from protocol.shardcast.index import Shard, ShardIndex
from protocol.shardcast.transfer import Transfer

A, B, C, ROOT = PeerId("a"), PeerId("b"), PeerId("c"), PeerId("root")
ZERO = Digest(bytes(32))


def make_index(shards: int, chunks: int) -> ShardIndex:
    parts = tuple(Shard(ZERO, chunks * 10, (ZERO,) * chunks) for _ in range(shards))
    return ShardIndex(shards * chunks * 10, chunks * 10, 10, parts)


def start(
    candidates: Sequence[Sequence[PeerId]],
    shards: int = 4,
    chunks: int = 4,
    limits: TransferLimits | None = None,
    missing: Sequence[Sequence[int]] | None = None,
    root: PeerId | None = None,
    helpers: Sequence[PeerId] = (),
    untrusted: frozenset[PeerId] = frozenset(),
) -> Transfer:
    index = make_index(shards, chunks)
    chunks_missing = [range(chunks)] * shards if missing is None else missing
    limits = limits or TransferLimits(request_bytes=20)
    listed = {"helpers": helpers, "untrusted": untrusted}
    return Transfer(index, candidates, chunks_missing, limits, root=root, **listed)


def asks(effects: Sequence[Effect]) -> list[Ask]:
    return [effect for effect in effects if isinstance(effect, Ask)]


def deliver(transfer: Transfer, ask: Ask, now: float) -> list[Effect]:
    effects: list[Effect] = []
    for chunk in range(ask.first, ask.first + ask.count):
        effects += transfer.handle(ChunkVerified(ask.request, ask.shard, chunk), now)
    return effects


def test_each_stripe_asks_its_parent_for_its_own_shards_in_order() -> None:
    first = asks(start([[A, ROOT], [B, ROOT]]).handle(Tick(), 0.0))
    assert [(ask.peer, ask.shard, ask.first, ask.count) for ask in first] == [
        (A, 0, 0, 2),
        (A, 0, 2, 2),
        (B, 1, 0, 2),
        (B, 1, 2, 2),
    ]
    assert all(ask.wait for ask in first)
    stripes = start([[A]] * 4, shards=6)._stripes
    assert [stripe.shards for stripe in stripes] == [[0, 4], [1, 5], [2], [3]]


def test_a_transfer_ends_with_done_and_then_says_nothing() -> None:
    transfer = start([[A]], shards=2)
    pending = asks(transfer.handle(Tick(), 0.0))
    last: list[Effect] = []
    while pending:
        last = deliver(transfer, pending.pop(0), 1.0)
        pending += asks(last)
    assert last[-1] == TransferDone()
    assert transfer.bytes_missing == 0
    assert transfer.handle(Tick(), 2.0) == []


def test_nothing_missing_is_done_at_once_and_what_is_here_is_not_asked_for() -> None:
    assert start([[A]], missing=[[], [], [], []]).handle(Tick(), 0.0) == [TransferDone()]
    transfer = start([[A]], missing=[[], [1, 3], [], []])
    assert transfer.bytes_missing == 20
    taken = [(ask.shard, ask.first, ask.count) for ask in asks(transfer.handle(Tick(), 0.0))]
    assert taken == [(1, 1, 1), (1, 3, 1)]


def test_a_broken_parent_is_replaced_at_once_and_tried_again_with_one_request() -> None:
    transfer = start([[A, B, ROOT]], shards=8)
    one, _ = asks(transfer.handle(Tick(), 0.0))
    (again,) = asks(transfer.handle(RequestFailed(one.request, Refusal.BROKEN), 0.1))
    assert (again.peer, again.shard, again.first) == (B, one.shard, one.first)
    transfer.handle(RequestFailed(1, Refusal.BUSY), 0.2)
    later = asks(deliver(transfer, again, 2.5))
    assert [ask.peer for ask in later] == [A], "the pause of two seconds is over"
    last = asks(transfer.handle(RequestFailed(3, Refusal.BROKEN), 2.6))
    assert [ask.peer for ask in last] == [ROOT], "one has its single request, the other just broke"


def test_a_parent_that_has_nothing_yet_is_asked_again_and_waited_for_then_passed_over() -> None:
    limits = TransferLimits(requests_per_stripe=1, ahead_seconds=math.inf)
    transfer = start([[A, B]], limits=limits)
    (ask,) = asks(transfer.handle(Tick(), 0.0))
    asked_at_a, now = [ask], 0.0
    assert transfer.handle(RequestFailed(ask.request, Refusal.UNAVAILABLE), now) == []
    while True:
        now += 0.25
        (ask,) = asks(transfer.handle(Tick(), now))
        if ask.peer == B:
            break
        asked_at_a.append(ask)
        follow = transfer.handle(RequestFailed(ask.request, Refusal.UNAVAILABLE), now)
        if follow:
            (ask,) = asks(follow)
            break
    assert ask.peer == B
    assert ask.wait
    assert now == pytest.approx(3.0)
    assert len(asked_at_a) == 13


def test_a_late_parent_is_cancelled_and_the_wait_doubles_while_nothing_comes() -> None:
    limits = TransferLimits(requests_per_stripe=1, request_bytes=20, ahead_seconds=math.inf)
    transfer = start([[A, B]], limits=limits)
    (ask,) = asks(transfer.handle(Tick(), 0.0))
    assert transfer.handle(Tick(), 14.9) == []
    effects = transfer.handle(Tick(), 15.0)
    assert effects[0] == CancelRequest(ask.request)
    (second,) = asks(effects)
    assert second.peer == B
    assert transfer.handle(Tick(), 44.9) == []
    assert transfer.handle(Tick(), 45.0)[0] == CancelRequest(second.request)


def test_who_is_late_is_told_unless_it_has_delivered_in_this_transfer() -> None:
    transfer = start([[A], [B]], shards=2)
    one, _, other, _ = asks(transfer.handle(Tick(), 0.0))
    transfer.handle(ChunkVerified(one.request, one.shard, 0), 0.1)
    effects = [effect for now in range(1, 16) for effect in transfer.handle(Tick(), float(now))]
    assert CancelRequest(one.request) in effects
    assert CancelRequest(other.request) in effects
    late = [effect.peer for effect in effects if isinstance(effect, SourceLate)]
    assert set(late) == {B}


def test_an_untrusted_peer_is_late_sooner_until_it_has_delivered() -> None:
    transfer = start([[A, ROOT], [B, ROOT]], shards=2, untrusted=frozenset({A}))
    first = asks(transfer.handle(Tick(), 0.0))
    late = TransferLimits().late_seconds_untrusted
    assert not transfer.handle(Tick(), late - 0.1)
    given_up = transfer.handle(Tick(), late)
    assert [effect.peer for effect in given_up if isinstance(effect, SourceLate)] == [A, A]
    assert {ask.peer for ask in asks(given_up)} == {ROOT}, "trusted peers are waited for"
    transfer = start([[A, ROOT]], shards=1, untrusted=frozenset({A}))
    first = asks(transfer.handle(Tick(), 0.0))
    transfer.handle(ChunkVerified(first[0].request, 0, first[0].first), late - 0.1)
    assert not asks(transfer.handle(Tick(), late)), "it has sent something"


def test_untrusted_membership_follows_the_roster() -> None:
    transfer = start([[A, ROOT]], shards=1)
    transfer.handle(Tick(), 0.0)
    transfer.handle(CandidatesChanged(((A, ROOT),), untrusted=frozenset({A})), 1.0)
    late = TransferLimits().late_seconds_untrusted
    assert {ask.peer for ask in asks(transfer.handle(Tick(), late))} == {ROOT}


def test_lateness_follows_the_measured_gap() -> None:
    transfer = start([[A, B]], shards=40)
    queue, now = asks(transfer.handle(Tick(), 0.0)), 0.0
    for _ in range(30):
        now += 0.01
        queue += asks(deliver(transfer, queue.pop(0), now))
    assert not [e for e in transfer.handle(Tick(), now + 1.9) if isinstance(e, CancelRequest)]
    assert [e for e in transfer.handle(Tick(), now + 2.1) if isinstance(e, CancelRequest)]


def test_a_bad_chunk_names_its_sender_who_is_never_asked_again() -> None:
    transfer = start([[A, B]], shards=2)
    one, other = asks(transfer.handle(Tick(), 0.0))
    effects = transfer.handle(ChunkCorrupt(one.request, 1), 0.5)
    (blame,) = (effect for effect in effects if isinstance(effect, BadSource))
    assert blame.peer == A
    assert (blame.fault.code, blame.fault.detail) == ("bad-chunk", "shard 0 chunk 1")
    assert CancelRequest(other.request) in effects
    assert [ask.peer for ask in asks(effects)] == [B, B]
    assert transfer.handle(ChunkCorrupt(other.request, 3), 0.6) == [], "its request is over already"


def test_a_chunk_of_a_cancelled_request_still_counts() -> None:
    transfer = start([[A, B]], shards=1, limits=TransferLimits(requests_per_stripe=1))
    (ask,) = asks(transfer.handle(Tick(), 0.0))
    (second,) = asks(transfer.handle(RequestFailed(ask.request, Refusal.BROKEN), 0.1))
    assert (second.first, second.count) == (0, 4)
    transfer.handle(ChunkVerified(ask.request, 0, 0), 0.2)
    assert transfer.bytes_missing == 30
    (third,) = asks(transfer.handle(RequestFailed(second.request, Refusal.BROKEN), 3.0))
    assert (third.first, third.count) == (1, 3)


def test_the_tail_is_asked_of_anyone_and_the_slower_answer_is_cancelled() -> None:
    transfer = start([[A], [B]], shards=2, chunks=1)
    one, other = asks(transfer.handle(Tick(), 0.0))
    deliver(transfer, other, 0.1)
    assert transfer.handle(Tick(), 7.4) == [], "half of what is late has not passed"
    (hedge,) = asks(transfer.handle(Tick(), 7.5))
    assert (hedge.peer, hedge.shard, hedge.wait) == (B, one.shard, False)
    assert transfer.handle(Tick(), 7.7) == [], "one hedge is enough"
    effects = deliver(transfer, hedge, 7.9)
    assert effects == [CancelRequest(one.request), TransferDone()]


def test_a_stripe_that_is_fed_late_is_not_judged_by_another_one() -> None:
    transfer = start([[A], [B]], shards=2, chunks=2)
    one, other = asks(transfer.handle(Tick(), 0.0))
    transfer.handle(ChunkVerified(other.request, other.shard, 0), 0.1)
    transfer.handle(ChunkVerified(other.request, other.shard, 1), 0.2)
    effects = [effect for now in range(1, 15) for effect in transfer.handle(Tick(), float(now))]
    assert CancelRequest(one.request) not in effects
    assert CancelRequest(one.request) in transfer.handle(Tick(), 15.0)


def test_the_root_is_asked_in_its_turn_and_never_on_suspicion() -> None:
    transfer = start([[A, ROOT], [B, ROOT]], shards=2, chunks=1, root=ROOT)
    one, _ = asks(transfer.handle(Tick(), 0.0))
    asked = [ask.peer for now in range(1, 15) for ask in asks(transfer.handle(Tick(), float(now)))]
    assert asked == [B, A], "a hedge for each"
    assert CancelRequest(one.request) in transfer.handle(Tick(), 15.0)
    asked = [ask.peer for now in range(16, 90) for ask in asks(transfer.handle(Tick(), float(now)))]
    assert ROOT in asked, "who stands before it was late, too"


def test_a_second_source_is_asked_for_the_later_half_of_what_is_slow_to_come() -> None:
    limits = TransferLimits(requests_per_stripe=1)
    transfer = start([[A], [B]], shards=2, chunks=4, limits=limits)
    one, other = asks(transfer.handle(Tick(), 0.0))
    deliver(transfer, other, 0.1)
    transfer.handle(ChunkVerified(one.request, one.shard, 0), 0.1)
    slow_for = 0.1 + limits.late_seconds_min / 2
    (hedge,) = asks(transfer.handle(Tick(), slow_for))
    assert (hedge.peer, hedge.first, hedge.count) == (B, 2, 2)
    assert asks(transfer.handle(ChunkVerified(one.request, one.shard, 1), slow_for)) == []
    assert deliver(transfer, hedge, slow_for + 0.1) == [CancelRequest(one.request), TransferDone()]


def test_a_stripe_that_has_all_its_own_helps_through_its_own_candidates_from_the_end() -> None:
    transfer = start([[A], [B]], shards=8, chunks=1)
    pending = [ask for ask in asks(transfer.handle(Tick(), 0.0)) if ask.peer == B]
    order = []
    while pending:
        order.append(pending[0].shard)
        more = deliver(transfer, pending.pop(0), 0.1)
        assert all(ask.wait for ask in asks(more))
        pending += [ask for ask in asks(more) if ask.peer == B]
    assert order == [1, 3, 5, 7, 6, 4], "0 and 2 have been asked of A"


@pytest.mark.parametrize("stripes", [2, 3, 4, 7])
def test_each_shard_has_one_stripe_that_helps_with_it(stripes: int) -> None:
    peers = [[PeerId(f"p{stripe}")] for stripe in range(stripes)]
    limits = TransferLimits(requests_per_stripe=1, request_bytes=10)
    helpers: dict[PeerId, int] = {}
    for slow in range(5 * stripes):
        missing = [range(4) if shard == slow else [] for shard in range(5 * stripes)]
        own, helping = asks(start(peers, 5 * stripes, 4, limits, missing).handle(Tick(), 0.0))
        assert [own.peer] == peers[slow % stripes]
        assert (helping.shard, helping.wait) == (slow, True)
        assert helping.peer != own.peer
        helpers[helping.peer] = helpers.get(helping.peer, 0) + 1
    assert len(helpers) == stripes, "all help"


def test_who_says_what_it_holds_is_asked_for_that_and_not_for_more() -> None:
    limits = TransferLimits(requests_per_stripe=1, request_bytes=10)
    missing: list[range] = [range(8), range(0)]
    transfer = start([[A], [C]], shards=2, chunks=8, limits=limits, missing=missing)
    one, _helping = asks(transfer.handle(Tick(), 0.0))
    (ask,) = asks(transfer.handle(RequestFailed(one.request, Refusal.BROKEN), 0.1))
    assert (ask.peer, ask.first, ask.wait) == (C, 0, False)
    refused = RequestFailed(ask.request, Refusal.UNAVAILABLE, held=0b0110_0000)
    asked = []
    while more := asks(transfer.handle(refused, 0.2) if not asked else deliver(transfer, ask, 0.2)):
        (ask,) = more
        asked.append((ask.peer, ask.first, ask.count, ask.wait))
    assert asked == [(C, 5, 1, False), (C, 6, 1, False)]


def test_the_end_of_what_lacks_most_is_asked_of_helpers_and_nobody_is_made_to_wait() -> None:
    limits = TransferLimits(request_bytes=20, requests_per_stripe=1)
    transfer = start([[A, ROOT], [B, ROOT]], 12, limits=limits, root=ROOT, helpers=[C])
    transfer.handle(Tick(), 0.0)
    assert asks(transfer.handle(Tick(), 0.9)) == [], "most versions are here sooner"
    (ask,) = asks(transfer.handle(Tick(), 1.0))
    assert (ask.peer, ask.shard, ask.wait) == (C, 10, False)
    assert asks(transfer.handle(Tick(), 1.1)) == [], "one beside those of the stripes"
    transfer.handle(RequestFailed(ask.request, Refusal.UNAVAILABLE, 0), 1.2)
    assert asks(transfer.handle(Tick(), 2.1)) == [], "nobody is asked all the time"
    (ask,) = asks(transfer.handle(Tick(), 2.2))
    assert (ask.peer, ask.shard) == (A, 10), "C does not hold it"
    deliver(transfer, ask, 2.3)
    (ask,) = asks(transfer.handle(Tick(), 2.3))
    assert (ask.peer, ask.shard, ask.first) == (A, 10, 2)
    deliver(transfer, ask, 2.4)
    (ask,) = asks(transfer.handle(Tick(), 2.4))
    assert (ask.peer, ask.shard, ask.first) == (C, 11, 0)


def test_the_root_is_not_asked_for_an_end_and_new_helpers_are() -> None:
    transfer = start([[ROOT]], root=ROOT)
    transfer.handle(Tick(), 0.0)
    assert asks(transfer.handle(Tick(), 5.0)) == []
    transfer.handle(CandidatesChanged(((ROOT,),), (B,)), 5.1)
    asked = asks(transfer.handle(Tick(), 5.2))
    assert {(ask.peer, ask.wait) for ask in asked} == {(B, False)}


def test_who_brings_an_end_fast_does_not_make_a_parent_late() -> None:
    limits = TransferLimits(request_bytes=20, requests_per_stripe=1)
    transfer = start([[A, B]], shards=8, limits=limits, helpers=[C])
    transfer.handle(Tick(), 0.0)
    (ask,) = asks(transfer.handle(Tick(), 1.0))
    while ask.peer == C and transfer.bytes_missing > 200:
        deliver(transfer, ask, 1.0)
        (ask,) = asks(transfer.handle(Tick(), 1.0))
    assert not [it for it in transfer.handle(Tick(), 14.9) if isinstance(it, SourceLate)]
    assert SourceLate(A) in transfer.handle(Tick(), 15.0)


def test_requests_in_flight_to_one_peer_are_bounded() -> None:
    limits = TransferLimits(requests_per_peer=3, requests_per_stripe=2, request_bytes=10)
    assert len(asks(start([[A], [A], [A]], limits=limits).handle(Tick(), 0.0))) == 3


def test_new_candidates_are_used_and_old_ones_are_not() -> None:
    transfer = start([[A]], shards=2)
    one, other = asks(transfer.handle(Tick(), 0.0))
    transfer.handle(RequestFailed(other.request, Refusal.UNAVAILABLE), 0.1)
    effects = transfer.handle(CandidatesChanged(((B, C),)), 0.2)
    assert [ask.peer for ask in asks(effects)] == [B]
    again = asks(transfer.handle(RequestFailed(one.request, Refusal.BROKEN), 0.3))
    assert [ask.peer for ask in again] == [B]


def test_who_is_no_candidate_any_more_is_waited_for_briefly_and_not_held_to_be_late() -> None:
    transfer = start([[A, B], [B, A]], shards=2, limits=TransferLimits(requests_per_stripe=1))
    one, other = asks(transfer.handle(Tick(), 0.0))
    transfer.handle(CandidatesChanged(((ROOT,), (B,))), 0.5)
    assert transfer.handle(Tick(), 2.9) == []
    effects = transfer.handle(Tick(), 3.0)
    assert effects[0] == CancelRequest(one.request)
    assert [(ask.peer, ask.shard, ask.wait) for ask in asks(effects)] == [(ROOT, 0, True)]
    assert not [effect for effect in effects if isinstance(effect, SourceLate)]
    transfer.handle(CandidatesChanged(((A, ROOT), (B,))), 3.1)
    (again,) = asks(transfer.handle(RequestFailed(2, Refusal.BROKEN), 3.2))
    assert again.peer == A, "it was not its fault"
    assert CancelRequest(other.request) not in transfer.handle(Tick(), 4.0)


def test_a_candidate_that_delivers_goes_on_when_it_is_none_any_more() -> None:
    transfer = start([[A]], shards=1, limits=TransferLimits(requests_per_stripe=1))
    (ask,) = asks(transfer.handle(Tick(), 0.0))
    transfer.handle(CandidatesChanged(((B,),)), 0.5)
    for chunk, now in enumerate((2.9, 5.0, 7.1)):
        effects = transfer.handle(ChunkVerified(ask.request, 0, chunk), now)
        effects += transfer.handle(Tick(), now + 1.9)
        assert not [effect for effect in effects if isinstance(effect, CancelRequest)]


def test_a_stripe_asks_its_own_candidates_before_others_help_it() -> None:
    limits = TransferLimits(requests_per_stripe=1)
    transfer = start([[A], [B]], shards=2, missing=[[], range(4)], limits=limits)
    (ask,) = asks(transfer.handle(Tick(), 0.0))
    (again,) = asks(transfer.handle(RequestFailed(ask.request, Refusal.UNAVAILABLE), 4.0))
    assert (again.peer, again.wait) == (A, True), "its own one is to be asked again later"
    retry = asks(transfer.handle(RequestFailed(again.request, Refusal.UNAVAILABLE), 4.5))
    assert [(ask.peer, ask.wait) for ask in retry] == [(B, True)]


def test_events_of_unknown_requests_change_nothing() -> None:
    transfer = start([[A]])
    transfer.handle(Tick(), 0.0)
    assert transfer.handle(RequestFailed(99, Refusal.BROKEN), 0.1) == []
    assert transfer.handle(ChunkCorrupt(99, 0), 0.1) == []


def test_without_any_source_it_waits_and_goes_on_later() -> None:
    transfer = start([[A]], shards=1, limits=TransferLimits(requests_per_stripe=1))
    (ask,) = asks(transfer.handle(Tick(), 0.0))
    assert transfer.handle(RequestFailed(ask.request, Refusal.BROKEN), 0.0) == []
    assert transfer.handle(Tick(), 1.9) == []
    assert len(asks(transfer.handle(Tick(), 2.0))) == 1


def fail_until_paused(transfer: Transfer, ask: Ask, now: float) -> float:
    """Fail a request; return the seconds until its peer is requested again."""
    assert transfer.handle(RequestFailed(ask.request, Refusal.BROKEN), now) == []
    for quarters in range(1, 1000):
        if asks(transfer.handle(Tick(), now + quarters / 4)):
            return quarters / 4
    raise AssertionError("never asked again")


def test_who_breaks_again_and_again_is_left_alone_twice_as_long_each_time() -> None:
    limits = TransferLimits(requests_per_stripe=1, late_seconds_initial=1000.0)
    transfer = start([[A]], shards=1, limits=limits)
    asks(transfer.handle(Tick(), 0.0))
    pauses, now = [], 0.0
    for number in range(7):
        ask = Ask(number, 0, A, 0, 0, 4, wait=True)
        pauses.append(fail_until_paused(transfer, ask, now))
        now += pauses[-1]
    assert pauses == [2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]


def test_who_delivers_again_is_trusted_again() -> None:
    limits = TransferLimits(requests_per_stripe=2, request_bytes=10)
    transfer = start([[A]], shards=4, limits=limits)
    first, second = asks(transfer.handle(Tick(), 0.0))
    transfer.handle(RequestFailed(first.request, Refusal.BROKEN), 0.0)
    transfer.handle(RequestFailed(second.request, Refusal.BROKEN), 0.0)
    (single,) = asks(transfer.handle(Tick(), 2.0))
    assert transfer.handle(Tick(), 2.5) == [], "one request at a time for anyone that broke"
    one, other = asks(deliver(transfer, single, 3.0))
    assert transfer.handle(RequestFailed(one.request, Refusal.BROKEN), 4.0) == []
    assert transfer.handle(RequestFailed(other.request, Refusal.BROKEN), 4.0) == []
    assert transfer.handle(Tick(), 5.9) == []
    assert len(asks(transfer.handle(Tick(), 6.0))) == 1, "after the first pause, not the second"


def test_a_delivery_ends_a_pause() -> None:
    transfer = start([[A]], shards=4, limits=TransferLimits(requests_per_stripe=2))
    one, other = asks(transfer.handle(Tick(), 0.0))
    assert transfer.handle(RequestFailed(one.request, Refusal.BROKEN), 0.5) == []
    (again,) = asks(transfer.handle(ChunkVerified(other.request, other.shard, 0), 0.6))
    assert (again.peer, again.shard) == (A, one.shard)


def test_what_is_still_slow_to_come_is_hedged_again_when_a_hedge_was_lost() -> None:
    transfer = start([[A], [B], [C]], shards=3, chunks=1)
    one, *others = asks(transfer.handle(Tick(), 0.0))
    for ask in others:
        deliver(transfer, ask, 0.1)
    (hedge,) = asks(transfer.handle(Tick(), 8.0))
    assert (hedge.peer, hedge.shard) == (B, one.shard)
    assert asks(transfer.handle(RequestFailed(hedge.request, Refusal.BROKEN), 8.5)) == []
    (second,) = asks(transfer.handle(Tick(), 9.0))
    assert (second.peer, second.shard) == (C, one.shard)
    assert deliver(transfer, second, 9.5) == [CancelRequest(one.request), TransferDone()]


@dataclass
class World:
    """Peers with given behaviour; checks every request against the rules of a transfer."""

    transfer: Transfer
    behaviours: dict[PeerId, str]
    draw: Callable[[int], int]
    now: float = 0.0
    live: dict[int, Ask] = field(default_factory=dict)
    got: dict[tuple[int, int], None] = field(default_factory=dict)
    blamed: dict[PeerId, None] = field(default_factory=dict)
    done: bool = False

    def take(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Ask):
                assert effect.peer not in self.blamed
                assert effect.count >= 1
                chunks = range(effect.first, effect.first + effect.count)
                assert all((effect.shard, chunk) not in self.got for chunk in chunks)
                self.live[effect.request] = effect
                per_peer = [ask for ask in self.live.values() if ask.peer == effect.peer]
                assert len(per_peer) <= 8
            elif isinstance(effect, CancelRequest):
                self.live.pop(effect.request, None)
            elif isinstance(effect, BadSource):
                assert self.behaviours[effect.peer] == "liar"
                self.blamed[effect.peer] = None
            elif isinstance(effect, TransferDone):
                self.done = True
            else:
                assert isinstance(effect, SourceLate)

    def answer(self, ask: Ask) -> None:
        """Advance one request by one step."""
        behaviour = self.behaviours[ask.peer]
        if behaviour == "flaky":
            behaviour = ("honest", "dead", "busy", "empty", "silent")[self.draw(5)]
        if behaviour == "silent":
            return
        if behaviour == "liar":
            del self.live[ask.request]
            self.take(self.transfer.handle(ChunkCorrupt(ask.request, ask.first), self.now))
        elif behaviour == "honest":
            self.send(ask)
        else:
            refusal = {"busy": Refusal.BUSY, "empty": Refusal.UNAVAILABLE}.get(behaviour)
            del self.live[ask.request]
            event = RequestFailed(ask.request, refusal or Refusal.BROKEN)
            self.take(self.transfer.handle(event, self.now))

    def send(self, ask: Ask) -> None:
        for chunk in range(ask.first, ask.first + ask.count):
            if ask.request not in self.live:
                return
            self.got[ask.shard, chunk] = None
            if chunk == ask.first + ask.count - 1:
                del self.live[ask.request]
            self.take(self.transfer.handle(ChunkVerified(ask.request, ask.shard, chunk), self.now))

    def run(self, steps: int) -> None:
        self.take(self.transfer.handle(Tick(), self.now))
        for _ in range(steps):
            if self.done:
                return
            self.now += 0.5
            if self.live:
                order = list(self.live)
                self.answer(self.live[order[self.draw(len(order))]])
            self.take(self.transfer.handle(Tick(), self.now))


BEHAVIOURS = ("honest", "dead", "busy", "empty", "silent", "liar", "flaky")


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.sampled_from(BEHAVIOURS), min_size=1, max_size=6),
    st.integers(1, 4),
    st.integers(1, 6),
    st.integers(1, 4),
    st.randoms(use_true_random=False),
)
def test_it_completes_if_and_only_if_someone_honest_has_it(
    kinds: list[str], stripes: int, shards: int, chunks: int, random: "st.DrawFn"
) -> None:
    peers = [PeerId(f"p{n}") for n in range(len(kinds))]
    behaviours = dict(zip(peers, kinds, strict=True))
    orders = [random.sample(peers, len(peers)) for _ in range(stripes)]
    transfer = start(orders, shards=shards, chunks=chunks)
    world = World(transfer, behaviours, random.randrange)
    world.run(3000 if "honest" in kinds else 200)
    if "honest" in kinds:
        assert world.done
        assert len(world.got) == shards * chunks
    elif "flaky" not in kinds:
        assert not world.done
        assert transfer.bytes_missing == shards * chunks * 10
    assert (transfer.bytes_missing == 0) == world.done


def test_a_chunk_that_comes_twice_counts_once() -> None:
    transfer = start([[A]], shards=1)
    (ask, _) = asks(transfer.handle(Tick(), 0.0))
    for _ in range(2):
        transfer.handle(ChunkVerified(ask.request, 0, 0), 0.1)
    assert transfer.bytes_missing == 30

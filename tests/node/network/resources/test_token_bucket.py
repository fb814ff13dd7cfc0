from hypothesis import given
from hypothesis import strategies as st

from node.network.resources import token_bucket as module
from node.network.resources.token_bucket import TRUSTED_FACTOR, TokenBuckets
from protocol.core.types import PeerId
from roles.ports.transport import Trust

PER_SECOND, BURST = 2.0, 6
TRUST = Trust(lambda peer: peer.startswith("trusted"), lambda peer: peer[-1])


def made() -> TokenBuckets:
    return TokenBuckets(PER_SECOND, BURST, TRUST)


def taken(rates: TokenBuckets, peer: str, asked: int, now: float) -> int:
    return sum(rates.take(PeerId(peer), now) for _ in range(asked))


def test_a_burst_then_so_many_a_second_and_a_burst_again_after_a_rest():
    rates = made()
    assert taken(rates, "a1", 100, 1000.0) == BURST
    assert [taken(rates, "a1", 100, 1000.0 + s) for s in (0.4, 0.5, 0.9, 1.0, 2.0)] == [
        0,
        1,
        0,
        1,
        2,
    ]
    assert taken(rates, "a1", 100, 5000.0) == BURST


def test_untrusted_peers_of_one_address_share_a_bucket_and_others_have_their_own():
    rates = made()
    assert taken(rates, "a1", 4, 1000.0) + taken(rates, "b1", 100, 1000.0) == BURST
    assert taken(rates, "c2", 100, 1000.0) == BURST


def test_a_trusted_peer_has_a_larger_bucket_of_its_own():
    rates = made()
    assert taken(rates, "a1", 100, 1000.0) == BURST
    assert taken(rates, "trusted1", 1000, 1000.0) == TRUSTED_FACTOR * BURST
    assert taken(rates, "trusted1", 1000, 1001.0) == TRUSTED_FACTOR * PER_SECOND


@given(
    st.lists(st.tuples(st.sampled_from(("a1", "b1", "c2")), st.floats(0, 3)), max_size=200),
)
def test_over_any_stretch_an_address_has_a_burst_and_its_rate_at_most(asks):
    """Counted by hand: the amount admitted between every two moments."""
    rates, now, passed = made(), 1e6, []
    for peer, pause_seconds in asks:
        now += pause_seconds
        if rates.take(PeerId(peer), now):
            passed.append((now, peer[-1]))
    for block in "12":
        times = [at for at, other in passed if other == block]
        for first, began in enumerate(times):
            for last in range(first, len(times)):
                stretch_seconds = times[last] - began
                assert last - first + 1 <= BURST + PER_SECOND * stretch_seconds + 1e-6


def test_no_more_buckets_than_have_a_place_and_the_longest_unused_goes(monkeypatch):
    monkeypatch.setattr(module, "BUCKETS_MAX", 2)
    rates = made()
    assert taken(rates, "a1", 100, 1000.0) == BURST
    assert taken(rates, "b2", 1, 1000.0) == 1
    assert taken(rates, "a1", 1, 1000.0) == 0
    assert taken(rates, "c3", 1, 1000.0) == 1
    assert len(rates) == 2
    assert taken(rates, "a1", 1, 1000.0) == 0, "it is the one used last but one"
    assert taken(rates, "b2", 100, 1000.0) == BURST, "it was forgotten"

from hypothesis import given
from hypothesis import strategies as st

from protocol.core.rng import Rng
from protocol.gossipsub.forwarding import Flood
from tests.protocol.gossipsub.nodes import PEERS

EVERYBODY = [each.peer_id for each in PEERS]
some = st.sets(st.sampled_from(EVERYBODY))


@given(some, some, some, st.integers(0, len(EVERYBODY)), st.binary(max_size=4))
def test_the_mesh_before_trusted_before_untrusted_peers(
    mesh, trusted, subscribers, peers_max, seed
):
    mesh &= subscribers
    flood = Flood(peers_max, Rng(seed), lambda: trusted)
    got = flood.receivers(mesh, sorted(subscribers))
    assert len(set(got)) == len(got) == min(peers_max, len(subscribers))
    assert set(got) <= subscribers
    left = subscribers - set(got)
    for better, worse in [(mesh, subscribers - mesh), (trusted, subscribers - mesh - trusted)]:
        assert not left & better or not set(got) & worse
    assert got == sorted(got, key=lambda peer: peer not in trusted)


def test_no_untrusted_peer_is_always_left_out():
    """A node surrounded by untrusted peers reaches another honest one with some of its messages."""
    flood = Flood(4, Rng(b""), frozenset)
    assert {peer for _ in range(100) for peer in flood.receivers((), EVERYBODY)} == set(EVERYBODY)

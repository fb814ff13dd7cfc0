"""Connected peers with reputation."""

from hypothesis import given
from hypothesis import strategies as st

from node.network.connections.peer_selection import LOOK_SECONDS, TrustedPeers
from protocol.core.types import PeerId

PEERS = [PeerId(name) for name in "abcdef"]

some_peers = st.frozensets(st.sampled_from(PEERS))


@given(st.lists(st.tuples(st.floats(0, 2 * LOOK_SECONDS), some_peers, some_peers)))
def test_who_comes_or_leaves_is_noticed_at_once_and_reputation_in_a_while(steps):
    trusted: frozenset[PeerId] = frozenset()
    asked: list[PeerId] = []

    def has_reputation(peer):
        asked.append(peer)
        return peer in trusted

    seen, now, looked_at, before = TrustedPeers(has_reputation), 0.0, -LOOK_SECONDS, frozenset()
    for seconds, connected, trusted in steps:
        now += seconds
        known = {peer: peer in seen.peers for peer in connected & before}
        asked.clear()
        told = seen.look(dict.fromkeys(connected), now)
        all_of_them = now >= looked_at + LOOK_SECONDS
        assert told is (all_of_them or connected != before)
        if all_of_them:
            looked_at, known = now, {}
        new = {peer: peer in trusted for peer in connected - known.keys()}
        assert seen.peers == {peer for peer, has in {**known, **new}.items() if has}
        assert sorted(asked) == sorted(new)
        before = connected

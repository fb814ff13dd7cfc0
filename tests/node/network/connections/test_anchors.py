from node.network.connections.peer_selection import (
    DIALLED_PER_NETWORK,
    anchors,
    crowded,
    independent,
    network_of,
    surplus,
)


def at(host):
    return f"/ip4/{host}/tcp/4001/p2p/x"


def test_a_network_is_a_16_and_local_addresses_have_none():
    assert network_of([at("192.168.1.2"), at("9.9.1.1")]) == network_of([at("9.9.200.200")])
    assert network_of([at("9.8.1.1")]) != network_of([at("9.9.1.1")])
    assert network_of([at("192.168.1.2")]) is None
    assert network_of([]) is None


def test_a_network_is_full_when_enough_of_it_were_dialled():
    few = [network_of([at("9.9.1.1")])] * (DIALLED_PER_NETWORK - 1)
    assert crowded([*few, None, None, None]) == frozenset()
    assert crowded([*few, network_of([at("9.9.7.7")])]) == {"9.9.0.0/16"}


def test_a_later_start_begins_with_one_of_each_network():
    hosts = {"a": "9.9.1.1", "b": "9.9.2.2", "c": "9.9.3.3", "d": "8.8.8.8"}
    addresses = {peer: [at(host)] for peer, host in hosts.items()}
    assert anchors(list(hosts), addresses) == [at(hosts[peer]) for peer in "adbc"]


def test_local_peers_keep_their_order_and_ways_through_relays_are_left_out():
    addresses = {
        "a": [at("10.0.0.1")],
        "b": [at("10.0.0.2"), "/ip4/9.9.9.9/tcp/1/p2p/r/p2p-circuit/p2p/b"],
        "c": [],
    }
    assert anchors(["a", "b", "c", "d"], addresses) == [at("10.0.0.1"), at("10.0.0.2")]


def test_others_of_a_network_that_has_answered_are_not_independent():
    boots = [at("9.9.1.1"), at("9.9.2.2"), at("8.8.8.8"), at("7.7.7.7"), at("10.0.0.1")]
    assert independent(boots, boots[:1], 3) == boots[2:]
    assert independent(boots, boots[:3], 3) == boots[3:], "two networks so far"
    assert independent(boots, [boots[0], *boots[2:4]], 3) == []
    assert independent(boots, [at("10.0.0.1")], 3) == boots[:4], "a local one is one of its own"


def test_of_too_many_those_end_that_have_most_neighbours_and_came_last():
    places = {"a": ("9.9.9.9",), "b": ("8.8.8.8",), "c": ("9.9.9.9",), "d": ("9.9.9.9",), "e": ()}
    assert surplus(list("abcde"), places, set("abcde"), 2) == ["d", "c"]
    assert surplus(list("abcde"), places, set("abcde"), 9) == list("dcbae")
    assert surplus(list("abcde"), places, set("abcde"), 0) == []


def test_peers_below_the_gossip_threshold_are_pruned_first():
    places = {"a": ("9.9.9.9",), "b": ("8.8.8.8",), "c": ("9.9.9.9",)}
    assert surplus(list("abc"), places, {"c"}, 2) == ["b", "a"]

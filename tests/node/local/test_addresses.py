import pytest

from node.local.addresses import is_circuit, place_of, prefix_of, relay_address_of


@pytest.mark.parametrize(
    ("address", "place"),
    [
        ("/ip4/93.184.216.34/tcp/4001", "93.184.216.34"),
        ("/ip4/93.184.216.34/udp/4001/quic-v1", "93.184.216.34"),
        ("/ip6/2606:4700:1:2::7/tcp/4001", "2606:4700:1:2::/64"),
        ("/ip6/2606:4700:1:2:9:9:9:9/tcp/4001", "2606:4700:1:2::/64"),
        ("/ip4/127.0.0.1/tcp/4001", None),
        ("/ip4/10.1.2.3/tcp/4001", None),
        ("/ip6/fe80::1/tcp/4001", None),
        ("/dns4/example.org/tcp/4001", None),
        ("/ip4/93.184.216.34/tcp/4001/p2p/12D3/p2p-circuit", None),
        ("", None),
    ],
)
def test_a_place_is_what_neighbours_share(address, place):
    assert place_of(address) == place


@pytest.mark.parametrize(
    ("place", "prefix"),
    [("93.184.216.34", "93.184.0.0/16"), ("2606:4700:1:2::/64", "2606:4700::/32")],
)
def test_a_prefix_is_what_is_rented_together(place, prefix):
    assert prefix_of(place) == prefix


def test_an_address_through_a_relay_is_told_from_one_of_the_relay():
    relay = "/ip4/9.9.9.9/tcp/1/p2p/R"
    way = f"{relay}/p2p-circuit/p2p/T"
    assert is_circuit(way)
    assert not is_circuit(relay)
    assert relay_address_of(way) == relay

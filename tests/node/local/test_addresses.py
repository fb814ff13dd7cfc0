import pytest

from node.local.addresses import place_of


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

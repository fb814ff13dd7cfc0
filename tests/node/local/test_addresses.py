import re

import pytest

from node.local.addresses import (
    address_block,
    check_multiaddress,
    is_circuit,
    prefix_of,
    relay_address_of,
)


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
    assert address_block(address) == place


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


@pytest.mark.parametrize(
    "address",
    [
        "/ip4/203.0.113.7/tcp/31337",
        "/ip6/2001:db8::1/tcp/65535",
        "/dns4/tcp/tcp/443/tls/ws",
        "/dnsaddr/example.org",
        "/ip4/1.2.3.4/udp/4001/quic-v1/p2p/QmX/p2p-circuit/p2p/QmY",
    ],
)
def test_a_multiaddress_is_taken(address):
    assert check_multiaddress(address) == address


@pytest.mark.parametrize(
    ("address", "told"),
    [
        ("1.2.3.4:5", "'1.2.3.4:5' is not a multiaddress"),
        ("/ip4/999.1.1.1/tcp/1", "/ip4/999.1.1.1: not an IPv4 address"),
        ("/ip4/1.2.3/tcp/1", "/ip4/1.2.3: not an IPv4 address"),
        ("/ip6/1.2.3.4/tcp/1", "/ip6/1.2.3.4: not an IPv6 address"),
        ("/dns4/example.org/tcp/99999", "/tcp/99999: not a port, which is from 1 to 65535"),
        ("/ip4/1.2.3.4/tcp/0", "/tcp/0: not a port"),
        ("/ip4/1.2.3.4/tcp/-1", "/tcp/-1: not a port"),
        ("/ip4/1.2.3.4/tcp/" + "9" * 5000, "not a port"),
        ("/ip4/1.2.3.4/udp", "/udp/: not a port"),
    ],
)
def test_a_wrong_part_of_a_multiaddress_is_named(address, told):
    with pytest.raises(ValueError, match=re.escape(told)) as caught:
        check_multiaddress(address)
    assert len(str(caught.value)) < 200

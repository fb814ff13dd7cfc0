"""Peer addresses: validation, classification, and a cache of those that answered.

With the cache a node can restart when all bootstrap nodes of its configuration are gone.
"""

import json
import logging
from collections.abc import Iterable
from contextlib import suppress
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

from node.local.datadir import DataDir, write_atomically
from protocol.core.crypto import public_key_from_peer_id
from protocol.core.types import PeerId

log = logging.getLogger(__name__)

CACHED_PEERS_MAX = 64
"""Enough to find a live peer after days of churn; a guess."""

ADDRESS_CHARACTERS_MAX = 200
"""The limit of ``NodeRecord.addresses``."""

REMEMBERED_MAX = 4096
"""Entries of the address caches: the same few addresses are looked up several times a second, and
``ipaddress`` takes 10 us per call."""

CIRCUIT = "/p2p-circuit"
"""Multiaddress part between a relay and the peer behind it."""

EXAMPLE = "/ip4/203.0.113.7/tcp/31337/p2p/12D3KooW…"
PORT_MAX = 65_535

_WITH_VALUE = ("ip4", "ip6", "ip6zone", "dns", "dns4", "dns6", "dnsaddr", "tcp", "udp", "p2p")
"""Multiaddress names that take a value; ``p2p-circuit``, ``ws`` and others take none."""

_CACHE_BYTES_MAX = 64 * 1024


def check_multiaddress(text: str) -> str:
    """Return a multiaddress; raises ``ValueError`` naming an invalid IP address or port."""
    if not text.startswith("/"):
        raise ValueError(f"{text[:80]!r} is not a multiaddress")
    parts = iter(text[1:].split("/"))
    for name in parts:
        if name in _WITH_VALUE:
            _check_value(name, next(parts, ""))
    return text


def _check_value(name: str, value: str) -> None:
    try:
        if name == "ip4":
            IPv4Address(value)
        elif name == "ip6":
            IPv6Address(value)
    except ValueError:
        raise ValueError(f"/{name}/{value[:80]}: not an IPv{name[2:]} address") from None
    is_port = value.isascii() and value.isdecimal() and 1 <= int(value[:6]) <= PORT_MAX
    if name in ("tcp", "udp") and not is_port:
        raise ValueError(f"/{name}/{value[:80]}: not a port, which is from 1 to {PORT_MAX}")


def check_peer_address(text: str) -> str:
    """Return a multiaddress with a peer id; raises ``ValueError`` naming the invalid part."""
    address = text.strip()
    _, separator, peer_id = address.rpartition("/p2p/")
    if not (address.startswith("/") and separator and len(address) <= ADDRESS_CHARACTERS_MAX):
        raise ValueError(f"{address[:80]!r} is not a peer address; write it as {EXAMPLE}")
    check_multiaddress(address)
    if public_key_from_peer_id(peer_id) is None:
        raise ValueError(f"{peer_id[:80]!r} is not the peer id of an Ed25519 key (12D3KooW…)")
    return address


def host_of(address: str) -> str:
    """Return the host of a multiaddress: an IP address or a DNS name."""
    return "/".join(address.split("/")[2:3])


def peer_of(address: str) -> PeerId:
    """Return the peer id in the last ``/p2p`` part of a multiaddress."""
    return PeerId(address.rpartition("/p2p/")[2])


@lru_cache(REMEMBERED_MAX)
def is_local(host: str) -> bool:
    """Return whether an IP address is valid only on one machine or in one network."""
    try:
        return not ip_address(host).is_global
    except ValueError:
        return False


def is_circuit(address: str) -> bool:
    """Return whether a multiaddress goes through a relay."""
    return CIRCUIT in address


def relay_address_of(address: str) -> str:
    """Return the relay's address in a circuit address, with its ``/p2p`` part."""
    return address.partition(CIRCUIT)[0]


@lru_cache(REMEMBERED_MAX)
def address_block(address: str) -> str | None:
    """Return the address block of a multiaddress: an IPv4 address, or an IPv6 /64.

    None for a local address, a DNS name, or a relay's address, which many peers share.
    """
    host = host_of(address)
    if is_circuit(address) or is_local(host):
        return None
    try:
        ip = ip_address(host)
    except ValueError:
        return None
    # A customer gets 2^64 IPv6 addresses at once; go-libp2p-pubsub groups by /64 too.
    return host if ip.version == 4 else str(ip_network((ip, 64), strict=False))


@lru_cache(REMEMBERED_MAX)
def prefix_of(place: str) -> str:
    """Return the network of an address block: an IPv4 /16, or an IPv6 /32.

    A provider or an attacker mostly rents within one network; Bitcoin groups peers the same way.
    """
    ip = ip_network(place, strict=False)
    return str(ip.supernet(new_prefix=16 if ip.version == 4 else 32))


def load_cached_peers(datadir: DataDir) -> tuple[str, ...]:
    """Return the addresses that answered, best first; empty when the cache is damaged."""
    try:
        with datadir.peers.open("rb") as file:
            addresses = json.loads(file.read(_CACHE_BYTES_MAX))
    except FileNotFoundError:
        return ()
    except (OSError, ValueError) as error:
        log.warning("ignoring the damaged peer cache %s: %s", datadir.peers, error)
        return ()
    return _valid(addresses if isinstance(addresses, list) else [])


def store_cached_peers(datadir: DataDir, addresses: Iterable[str]) -> None:
    """Replace the cache by the first 64 distinct valid ``addresses``, best first.

    They may come from other nodes' records: invalid ones are dropped.
    """
    write_atomically(datadir.peers, json.dumps(_valid(addresses), indent=0).encode())


def _valid(addresses: Iterable[object]) -> tuple[str, ...]:
    kept: dict[str, None] = {}
    for address in addresses:
        with suppress(ValueError):
            kept[check_peer_address(str(address))] = None
        if len(kept) == CACHED_PEERS_MAX:
            break
    return tuple(kept)

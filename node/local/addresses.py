"""Peer addresses: what one looks like, and the cache of those that answered.

The cache lets a node start again when every bootstrap node of its configuration is gone.
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
"""Enough to find a living one after days of churn; a guess."""

ADDRESS_CHARACTERS_MAX = 200
"""As in ``NodeRecord.addresses``."""

REMEMBERED_MAX = 4096
"""Answers about addresses: the same few are asked about several times a second, and ``ipaddress``
takes 10 us each time."""

CIRCUIT = "/p2p-circuit"
"""In an address: through the relay before it, to the peer after it."""

EXAMPLE = "/ip4/203.0.113.7/tcp/31337/p2p/12D3KooW…"
PORT_MAX = 65_535

_WITH_VALUE = ("ip4", "ip6", "ip6zone", "dns", "dns4", "dns6", "dnsaddr", "tcp", "udp", "p2p")
"""Names in a multiaddress that a value follows; ``p2p-circuit``, ``ws`` and others have none."""

_CACHE_BYTES_MAX = 64 * 1024


def check_multiaddress(text: str) -> str:
    """Return a multiaddress; raises ``ValueError`` naming an IP address or a port that is none."""
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
    """Return a multiaddress that names its peer's key; raises ``ValueError`` saying what is off."""
    address = text.strip()
    _, separator, peer_id = address.rpartition("/p2p/")
    if not (address.startswith("/") and separator and len(address) <= ADDRESS_CHARACTERS_MAX):
        raise ValueError(f"{address[:80]!r} is not a peer address; write it as {EXAMPLE}")
    check_multiaddress(address)
    if public_key_from_peer_id(peer_id) is None:
        raise ValueError(f"{peer_id[:80]!r} is not the peer id of an Ed25519 key (12D3KooW…)")
    return address


def host_of(address: str) -> str:
    """Return the first name in a multiaddress: an IP address, or what stands for one."""
    return "/".join(address.split("/")[2:3])


def peer_of(address: str) -> PeerId:
    """Return the key that a multiaddress names, in its last ``/p2p`` part."""
    return PeerId(address.rpartition("/p2p/")[2])


@lru_cache(REMEMBERED_MAX)
def is_local(host: str) -> bool:
    """Return whether an IP address means something on one machine or in one network only."""
    try:
        return not ip_address(host).is_global
    except ValueError:
        return False


def is_circuit(address: str) -> bool:
    """Return whether a multiaddress goes through a relay."""
    return CIRCUIT in address


def relay_address_of(address: str) -> str:
    """Return the address of the relay through which an address goes, with its ``/p2p`` part."""
    return address.partition(CIRCUIT)[0]


@lru_cache(REMEMBERED_MAX)
def address_block(address: str) -> str | None:
    """Return what a multiaddress shares with its neighbours: an IPv4 address, an IPv6 /64.

    None where it tells nothing: a local address, a name, or a relay's, which many share.
    """
    host = host_of(address)
    if is_circuit(address) or is_local(host):
        return None
    try:
        ip = ip_address(host)
    except ValueError:
        return None
    # Whoever rents an IPv6 address rents 2^64 of them (go-libp2p-pubsub counts /64 too).
    return host if ip.version == 4 else str(ip_network((ip, 64), strict=False))


@lru_cache(REMEMBERED_MAX)
def prefix_of(place: str) -> str:
    """Return the network that a place is in: an IPv4 /16, an IPv6 /32.

    What one provider or one attacker rents together, mostly; Bitcoin's peers are told apart so.
    """
    ip = ip_network(place, strict=False)
    return str(ip.supernet(new_prefix=16 if ip.version == 4 else 32))


def load_cached_peers(datadir: DataDir) -> tuple[str, ...]:
    """Return the addresses that answered, best first; none when the cache is damaged."""
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
    """Replace the cache by the first 64 different ``addresses``, best first.

    They may come from other nodes' records: what is no peer address is left out.
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

"""Checks of p2pd and its port, of the public address, and of the initial peers."""

import asyncio
import os
import time
from dataclasses import replace

from node.cli.doctor import Finding, FindingLevel
from node.live.p2pd import P2pd, P2pdError, P2pdOptions
from node.local.datadir import load_or_create_identity
from node.local.sockets import SocketDirectory

CONNECT_SECONDS = 5.0
"""Five times the usual connect time to another continent."""


async def check_p2pd(host: str, port: int) -> Finding:
    """Start p2pd with a temporary key on the node's port."""
    sockets = SocketDirectory()
    try:
        key = sockets.path / "identity.key"
        load_or_create_identity(key)
        began = time.monotonic()
        child = await P2pd.start(key, sockets.path, P2pdOptions(host, port))
        await child.stop()
    except P2pdError as error:
        advice = "choose another --port" if port else "check that p2pd is executable"
        return Finding("p2pd", FindingLevel.FAILURE, str(error), advice)
    finally:
        sockets.close()
    where = f"{host}:{port}" if port else f"{host}, a free port"
    return Finding(
        "p2pd", FindingLevel.OK, f"listens at {where} after {time.monotonic() - began:.1f} s"
    )


def check_reachable(port: int, public_ip: str | None) -> Finding:
    """Check that a public address is configured; only peers can test it."""
    if public_ip and port:
        found = f"announces {public_ip}, port {port}: forward it in your router or firewall"
        return Finding("reachable", FindingLevel.OK, found)
    return Finding(
        "reachable",
        FindingLevel.WARNING,
        "announces no public address, so peers reach this node only through relays",
        "with a public address: --port PORT --public-ip IP",
    )


async def check_peers(addresses: tuple[str, ...]) -> list[Finding]:
    """Open a TCP connection to each address; the node checks peer ids when it joins."""
    found = await asyncio.gather(*map(_check_peer, addresses))
    if all(finding.level is FindingLevel.FAILURE for finding in found):
        return found
    # One reachable peer is enough.
    return [
        replace(finding, level=FindingLevel.WARNING)
        if finding.level is FindingLevel.FAILURE
        else finding
        for finding in found
    ]


async def _check_peer(address: str) -> Finding:
    parts = address.split("/")
    what = f"peer …{address[-8:]}"
    if parts[1] not in ("ip4", "dns", "dns4") or parts[3:4] != ["tcp"]:
        return Finding(
            what, FindingLevel.WARNING, f"{address} is not checked: no IPv4 or DNS address", ""
        )
    began = time.monotonic()
    try:
        connecting = asyncio.open_connection(parts[2], int(parts[4]))
        _, writer = await asyncio.wait_for(connecting, CONNECT_SECONDS)
    except TimeoutError:
        reason = f"no response within {CONNECT_SECONDS:g} s"
    except OSError as error:  # an unknown host name has no errno
        number = error.errno or 0
        reason = os.strerror(number) if number > 0 else str(error)
    else:
        writer.close()
        seconds = time.monotonic() - began
        found = f"{parts[2]}:{parts[4]} responds in {1000 * seconds:.0f} ms"
        return Finding(what, FindingLevel.OK, found)
    advice = "check the address and your firewall"
    return Finding(what, FindingLevel.FAILURE, f"{parts[2]}:{parts[4]}: {reason}", advice)

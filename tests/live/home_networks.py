"""Internet of network namespaces: hosts with public addresses, and homes behind NAT.

A central namespace routes between networks. A host has a public address in a network of its own. A
home is a machine behind a router, which masquerades and drops unsolicited packets. All homes have
the same inner addresses, as real ones do. The NAT is the kernel's: its mapping keeps the port where
that is free, and its filter is address- and port-dependent.

Needs root, ``ip`` and ``nft``; no packet leaves the namespaces.
"""

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

HOME_ADDRESS = "192.168.1.2"

_HOME_ROUTER = "192.168.1.1"
_NAT = """
table ip home {{
  chain outwards {{
    type nat hook postrouting priority srcnat;
    oifname "wan" masquerade{mode}
  }}
  chain inwards {{
    type filter hook forward priority filter;
    iifname "wan" ct state {{ established, related }} accept
    iifname "wan" drop
  }}
  chain itself {{
    type filter hook input priority filter;
    iifname "wan" ct state {{ established, related }} accept
    iifname "wan" drop
  }}
}}
"""


def why_not() -> str | None:
    """Return the missing requirement of such an internet, or None."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    missing = [tool for tool in ("ip", "nft") if shutil.which(tool) is None]
    if missing:
        return f"needs the packages iproute2 and nftables ({', '.join(missing)} not found)"
    name = f"pn{os.getpid()}x"
    try:
        _run("ip", "netns", "add", name)
    except subprocess.CalledProcessError as error:
        return f"no network namespaces here: {error.stderr.strip()}"
    try:
        _run("ip", "netns", "exec", name, "nft", "-f", "-", text=_NAT.format(mode=""))
    except subprocess.CalledProcessError as error:
        return f"the kernel has no NAT: {error.stderr.strip()}"
    finally:
        _run("ip", "netns", "delete", name)
    return None


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine: its namespace, its own address, and its public address."""

    namespace: str
    address: str
    public_address: str

    @property
    def command(self) -> tuple[str, ...]:
        """The prefix of commands that run there."""
        return ("ip", "netns", "exec", self.namespace)

    def wrapped(self, binary: Path, folder: Path) -> Path:
        """Return an executable in ``folder`` that runs ``binary`` on this machine."""
        script = folder / f"{binary.name}-{self.namespace}"
        script.write_text(f'#!/bin/sh\nexec {" ".join(self.command)} {binary} "$@"\n')
        script.chmod(0o755)
        return script


class Internet:
    """Factory of machines; ``close`` removes them all."""

    def __init__(self) -> None:
        self._prefix = f"pn{os.getpid()}"
        self._namespaces: list[str] = []
        self._networks = 0
        self._middle = self._namespace("net")
        self._in(self._middle, "sysctl", "-qw", "net.ipv4.ip_forward=1")

    def host(self) -> Machine:
        name = self._namespace(f"host{self._networks}")
        address = self._join(name)
        return Machine(name, address, address)

    def home(self, *, symmetric: bool = False) -> Machine:
        """Return a machine behind NAT; ``symmetric``: with another outer port for each peer."""
        number = self._networks
        router, inside = self._namespace(f"nat{number}"), self._namespace(f"home{number}")
        public = self._join(router)
        self._in(router, "sysctl", "-qw", "net.ipv4.ip_forward=1")
        mode = " random,fully-random" if symmetric else ""
        self._in(router, "nft", "-f", "-", text=_NAT.format(mode=mode))
        self._pair(router, "lan", f"{_HOME_ROUTER}/24", inside, "eth", f"{HOME_ADDRESS}/24")
        self._in(inside, "ip", "route", "add", "default", "via", _HOME_ROUTER)
        return Machine(inside, HOME_ADDRESS, public)

    def close(self) -> None:
        """Remove every namespace; one in use stays until its processes end."""
        for name in reversed(self._namespaces):
            _run("ip", "netns", "delete", name)
        self._namespaces.clear()

    def _join(self, name: str) -> str:
        """Connect a namespace to the next network of the internet; return its address."""
        self._networks += 1
        gateway, address = f"45.{self._networks}.0.1", f"45.{self._networks}.0.2"
        outer = f"if{self._networks}"
        self._pair(self._middle, outer, f"{gateway}/24", name, "wan", f"{address}/24")
        self._in(name, "ip", "route", "add", "default", "via", gateway)
        return address

    def _pair(self, one: str, link: str, address: str, other: str, peer: str, remote: str) -> None:
        """Connect two namespaces by a veth pair."""
        _run("ip", "link", "add", link, "netns", one, "type", "veth", "peer", peer, "netns", other)
        for namespace, name, ip in ((one, link, address), (other, peer, remote)):
            self._in(namespace, "ip", "address", "add", ip, "dev", name)
            self._in(namespace, "ip", "link", "set", name, "up")

    def _namespace(self, name: str) -> str:
        full = f"{self._prefix}{name}"
        _run("ip", "netns", "add", full)
        self._namespaces.append(full)
        self._in(full, "ip", "link", "set", "lo", "up")
        return full

    def _in(self, namespace: str, *command: str, text: str | None = None) -> None:
        _run("ip", "netns", "exec", namespace, *command, text=text)


def _run(*command: str, text: str | None = None) -> None:
    subprocess.run(command, input=text, check=True, capture_output=True, encoding="utf-8")

"""Hosts on this machine with their own networks behind shaped lines: namespaces and ``tc``.

``alone`` restarts a script in its own user, network, mount and process namespaces. It therefore
needs no privileges, does not touch the machine's network, and however it ends, the kernel ends all
of its children. A line is a token bucket (``tbf``) at the host's only uplink, with a queue as in
routers: excess traffic waits there and is then dropped.
"""

import os
import subprocess
import sys
from dataclasses import dataclass

ALONE = "PRIME_NODE_BENCHMARK_ALONE"
BURST_BYTES = 70_000
"""Token bucket size: the largest segment that the kernel hands to a network card. With a smaller
bucket the kernel segments itself, which takes more processor time than all else here."""

QUEUE_SECONDS = 0.25
"""Length of a line's queue; a guess, home routers hold 0.1 to 1 s."""


def alone() -> None:
    """Restart the script in namespaces of its own; return there."""
    if ALONE in os.environ:
        subprocess.run(["mount", "-t", "tmpfs", "none", "/run"], check=True)
        _ip("link add hosts type bridge")
        _ip("link set hosts up")
        return
    spaces = ["--map-root-user", "--net", "--mount", "--pid", "--mount-proc"]
    command = ["unshare", *spaces, "--fork", "--kill-child", sys.executable, *sys.argv]
    os.execvpe(command[0], command, {**os.environ, ALONE: "1"})


@dataclass(frozen=True, slots=True)
class Host:
    """A namespace with one address; all hosts share one switch without limits."""

    name: str
    address: str

    def command(self, command: list[str]) -> list[str]:
        """Return the command that runs ``command`` there."""
        return ["nsenter", f"--net=/run/netns/{self.name}", "--", *command]


def make_host(number: int, upload_bytes_per_second: int) -> Host:
    """Make a host, number 1 to 254, whose upload including headers is limited to this rate."""
    host = Host(f"host{number}", f"10.0.0.{number}")
    _ip(f"netns add {host.name}")
    _ip(f"link add port{number} type veth peer name line netns {host.name}")
    _ip(f"link set port{number} master hosts up")
    inside = f"-n {host.name}"
    _ip(f"{inside} addr add {host.address}/24 dev line")
    _ip(f"{inside} link set line up")
    _ip(f"{inside} link set lo up")
    queue_bytes = round(upload_bytes_per_second * QUEUE_SECONDS)
    bucket = f"tbf rate {8 * upload_bytes_per_second}bit burst {BURST_BYTES} limit {queue_bytes}"
    _run(f"tc {inside} qdisc add dev line root {bucket}")
    return host


def _ip(arguments: str) -> None:
    _run(f"ip {arguments}")


def _run(command: str) -> None:
    subprocess.run(command.split(), check=True)

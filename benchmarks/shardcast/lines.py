"""Hosts on this machine with networks of their own, each behind a line: namespaces and ``tc``.

``alone`` starts a script again in namespaces of its own for users, networks, mounts and processes.
So it needs no rights, nothing of it touches the machine's network, and however it ends, the kernel
ends whatever it had started. A line is a token bucket (``tbf``) before the host's only way out,
with a queue as routers have: what is sent faster waits there, and then is dropped.
"""

import os
import subprocess
import sys
from dataclasses import dataclass

ALONE = "PRIME_NODE_BENCHMARK_ALONE"
BURST_BYTES = 70_000
"""Of the token bucket: the longest that the kernel hands to a network card, which cuts it; where
the bucket is smaller the kernel cuts, which takes more processor time than all else here."""

QUEUE_SECONDS = 0.25
"""How much a line's queue holds; a guess, routers of homes hold 0.1 to 1."""


def alone() -> None:
    """Return in namespaces of our own, where the script starts again."""
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
    """A namespace with one address; all hosts are on one switch without limits."""

    name: str
    address: str

    def command(self, command: list[str]) -> list[str]:
        """Return what runs a command there."""
        return ["nsenter", f"--net=/run/netns/{self.name}", "--", *command]


def make_host(number: int, upload_bytes_per_second: int) -> Host:
    """Return a new host, 1 to 254, that sends no faster than this, with all headers."""
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

"""Workers behind home routers on an internet of network namespaces: how many stay in the run.

``python -m benchmarks.home_networks [--homes N] [--minutes M] [--json FILE]`` (as root)

A founded run of real processes: a trainer, two relays, two validators and one worker with public
addresses, and a worker in each home, every third behind a router that gives another outer port to
each peer. Half-way one relay is killed. The bar: nine of ten are connected, have rollouts certified
and the newest version but two at the end, as at the half.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.live.home_networks import Internet, Machine, why_not
from tests.live.test_founded_run import founded
from tests.live.test_home_networks import RemoteNode, through_a_relay

STAYED_SHARE_MIN = 0.9
VERSIONS_LATE_MAX = 2


@dataclass(frozen=True, slots=True)
class Count:
    """The homes at one moment."""

    when: str
    homes: int
    connected: int
    relayed: int
    """With an address through a relay."""
    current: int
    """With the newest version, or one of the two before."""
    certifying: int
    """With more rollouts certified than at the count before."""
    certified: int
    """Rollouts of all, since the start."""
    rejected: int


class Run:
    """The processes; ``stack`` ends them."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self._directory = directory
        self._stack = stack
        self._internet = Internet()
        stack.callback(self._internet.close)
        self._run = founded(directory, validators=2)
        beginning = ("--new-swarm", "--run", str(self._run / "run.toml"))
        trainer = self._start(self._internet.host(), self._run / "trainer-1", "trainer", *beginning)
        address = trainer.until(lambda status: status["addresses"])[0]
        self._joining = ("--initial-peers", address)
        self._relays = [self._public(directory / f"relay-{n}", "relay") for n in (1, 2)]
        for number in (1, 2):
            self._public(self._run / f"validator-{number}", "validator")
        for relay in self._relays:
            relay.until(lambda status: status["state"] == "ready")
        self._public(directory / "worker", "inference")
        self._homes: list[RemoteNode] = []
        self._before: list[int] = []

    def add_home(self, *, symmetric: bool) -> None:
        """Start a worker in a home of its own."""
        directory = self._directory / f"home-{len(self._homes) + 1}"
        machine = self._internet.home(symmetric=symmetric)
        self._homes.append(self._start(machine, directory, "inference", *self._joining))
        self._before.append(0)

    def kill_relay(self) -> None:
        """End one of the two relays without a word."""
        self._relays[0].process.kill()

    def count(self, when: str) -> Count:
        """Return how the homes are."""
        found = [home.status() for home in self._homes]
        certified = [status["own_rollouts"]["certified"] for status in found]
        risen = [now > before for now, before in zip(certified, self._before, strict=True)]
        self._before = certified
        return Count(
            when,
            len(found),
            sum(status["peers_connected"] > 0 for status in found),
            sum(bool(through_a_relay(status)) for status in found),
            sum(map(is_current, found)),
            sum(risen),
            sum(certified),
            sum(status["own_rollouts"]["rejected"] for status in found),
        )

    def _public(self, directory: Path, role: str) -> RemoteNode:
        return self._start(self._internet.host(), directory, role, *self._joining)

    def _start(self, machine: Machine, directory: Path, role: str, *options: str) -> RemoteNode:
        node = RemoteNode(machine, directory, "--role", role, *options)
        self._stack.callback(node.stop)
        return node


def is_current(status: dict[str, Any]) -> bool:
    """Tell whether a node has one of the newest versions."""
    late = status["policy_version_newest"] - status["policy_version"]
    return bool(late <= VERSIONS_LATE_MAX)


@contextmanager
def started(homes: int) -> Iterator[Run]:
    """Start a run with so many homes; end it in any case."""
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        run = Run(Path(directory), stack)
        for number in range(homes):
            run.add_home(symmetric=number % 3 == 2)
        yield run


def counted(run: Run, seconds: float, when: str) -> Count:
    """Return how the homes are after so long, and print it."""
    time.sleep(seconds)
    count = run.count(when)
    print(
        "{when}: of {homes} homes {connected} connected, {relayed} through a relay, "
        "{current} with the newest weights, {certifying} certifying; {certified} rollouts "
        "certified, {rejected} rejected".format(**asdict(count)),
        flush=True,
    )
    return count


def main() -> None:
    """Run it, and print the counts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--homes", type=int, default=9)
    parser.add_argument("--minutes", type=float, default=8.0)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if missing := why_not():
        raise SystemExit(missing)
    half_seconds = 30 * arguments.minutes
    with started(arguments.homes) as run:
        counts = [counted(run, half_seconds, "half-way, then a relay is killed")]
        run.kill_relay()
        counts.append(counted(run, half_seconds, "at the end"))
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(count) for count in counts], indent=1))
    stayed = min(
        min(count.connected, count.current, count.certifying) / count.homes for count in counts
    )
    raise SystemExit(0 if stayed >= STAYED_SHARE_MIN else f"only {stayed:.0%} stayed")


if __name__ == "__main__":
    main()

"""Run one dishonest node, to see it caught: a worker that lies, or a peer that attacks others.

Both are found by name, in the entry-point groups ``prime_node.behaviours`` and
``prime_node.attacks``.
"""

import os
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated, Any

import typer

from node.local.config import load_config
from node.local.errors import ExitCode, NodeError
from node.process.runner import MakePorts, live_engines, live_ports, run_node
from node.testnet.child import BEHAVIOUR_GROUP, dishonest
from protocol.core.crypto import Identity
from protocol.core.types import Role

ATTACK_GROUP = "prime_node.attacks"

app = typer.Typer(add_completion=False)


def _names(group: str) -> set[str]:
    return set(entry_points(group=group).names)


def _kinds() -> list[str]:
    """Return what a shell offers."""
    return sorted(name for group in (ATTACK_GROUP, BEHAVIOUR_GROUP) for name in _names(group))


@app.command("adversary")
def run_adversary(
    kind: Annotated[
        str,
        typer.Argument(help="What it does; an unknown word lists all.", autocompletion=_kinds),
    ],
    *,
    initial_peers: Annotated[
        list[str] | None, typer.Option(metavar="ADDR", help="Peer to join through.")
    ] = None,
    data_dir: Annotated[
        Path | None, typer.Option(metavar="DIR", help="What the node keeps.")
    ] = None,
    host: Annotated[
        str | None, typer.Option(metavar="IP", help="Address to accept connections on.")
    ] = None,
    times: Annotated[
        int, typer.Option(min=1, help="How many times as often an attacker acts as by itself.")
    ] = 1,
) -> None:
    """Join a run as a dishonest inference node, or as a relay that attacks its peers.

    Only for swarms of your own: an attack is against whoever answers at these addresses.
    """
    attacks, lies = _names(ATTACK_GROUP), _names(BEHAVIOUR_GROUP)
    if kind not in attacks | lies:
        known = f"lies: {', '.join(sorted(lies))}; attacks: {', '.join(sorted(attacks))}"
        raise NodeError(f"no behaviour {kind!r}; {known}", ExitCode.USAGE)
    flags = {
        "roles": [str(Role.RELAY if kind in attacks else Role.INFERENCE)],
        "initial_peers": initial_peers,
        "data_dir": data_dir,
        "host": host,
        "yes": True,
    }
    make_engines = live_engines if kind in attacks else dishonest(kind)
    make_ports = attacking(kind, times) if kind in attacks else live_ports
    config = load_config(flags, os.environ)
    raise typer.Exit(run_node(config, make_engines=make_engines, make_ports=make_ports))


def attacking(kind: str, times: int) -> MakePorts:
    """Return what makes the ports of a node that attacks; ``kind`` is registered."""
    (point,) = entry_points(group=ATTACK_GROUP, name=kind)
    attack = point.load()

    def make_ports(ports: Any, identity: Identity, replica: Any) -> Any:
        return attack(ports, identity, replica, times)

    return make_ports

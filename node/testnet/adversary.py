"""Run one dishonest node for a test: a worker, a validator, or a peer that attacks others.

The entry-point groups ``prime_node.behaviours`` and ``prime_node.attacks`` name both kinds.
"""

import os
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated, Any

import typer

from node.local.config import load_config
from node.local.errors import ExitCode, NodeError
from node.process.factories import MakePorts, live_engines, live_ports
from node.process.runner import run_node
from node.testnet.child import BEHAVIOUR_GROUP, dishonest
from node.testnet.plan import role_of
from protocol.core.crypto import Identity
from protocol.core.types import Role

ATTACK_GROUP = "prime_node.attacks"

app = typer.Typer(add_completion=False)


def _names(group: str) -> set[str]:
    return set(entry_points(group=group).names)


def _kinds() -> list[str]:
    """Return the kinds for shell completion."""
    return sorted(name for group in (ATTACK_GROUP, BEHAVIOUR_GROUP) for name in _names(group))


@app.command("adversary")
def run_adversary(
    kind: Annotated[
        str,
        typer.Argument(help="Behaviour; an unknown one lists all.", autocompletion=_kinds),
    ],
    *,
    initial_peers: Annotated[
        list[str] | None, typer.Option(metavar="ADDR", help="Bootstrap peer.")
    ] = None,
    data_dir: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Data directory of the node.")
    ] = None,
    host: Annotated[str | None, typer.Option(metavar="IP", help="Address to listen on.")] = None,
    times: Annotated[int, typer.Option(min=1, help="Multiplier of an attack's rate.")] = 1,
) -> None:
    """Join a run as a dishonest worker or validator, or as a relay that attacks its peers.

    Use it only in your own swarms: an attack hits all nodes behind these addresses.
    """
    attacks, lies = _names(ATTACK_GROUP), _names(BEHAVIOUR_GROUP)
    if kind not in attacks | lies:
        known = f"cheats: {', '.join(sorted(lies))}; attacks: {', '.join(sorted(attacks))}"
        raise NodeError(f"no behaviour {kind!r}; {known}", ExitCode.USAGE)
    flags = {
        "roles": [str(Role.RELAY if kind in attacks else role_of(kind))],
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
    """Return the factory of ports for a node with a registered attack."""
    (point,) = entry_points(group=ATTACK_GROUP, name=kind)
    attack = point.load()

    def make_ports(ports: Any, identity: Identity, replica: Any) -> Any:
        return attack(ports, identity, replica, times)

    return make_ports

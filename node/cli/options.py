"""The options of ``prime-node``, named like the keys of ``node.local.config.NodeConfig``.

They are taken as they are written: ``load_config`` reads flags, environment and file alike, so a
wrong value gets the same words wherever it stands.
"""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from node.cli import completion

_join = partial(typer.Option, rich_help_panel="Join a run")
_node = partial(typer.Option, rich_help_panel="This node")
_network = partial(typer.Option, rich_help_panel="Network")

Roles = Annotated[
    list[str] | None,
    _join(
        "--role",
        metavar="ROLE",
        help="inference, validator, trainer, relay; repeat or a,b.",
        autocompletion=completion.roles,
    ),
]
InitialPeers = Annotated[
    list[str] | None,
    _join(
        "--initial-peers",
        "--bootstrap",
        metavar="ADDR",
        help="Peer to join through: /ip4/…/tcp/…/p2p/12D3KooW…; repeat or a,b.",
    ),
]
NewSwarm = Annotated[
    bool | None, _join("--new-swarm", help="Begin a swarm with --run: nobody is there yet.")
]
Run = Annotated[
    Path | None, _join(metavar="RUN.toml", help="Insist on the run of this signed manifest.")
]
RunId = Annotated[str | None, _join(metavar="HEX", help="Insist on the run with this id.")]
Yes = Annotated[
    bool | None, _join("--yes", "-y", help="Join whatever run the peers offer, without a question.")
]
Invite = Annotated[
    str | None, _join(metavar="TOKEN", help="What you were invited with, or a file; kept then.")
]

Config = Annotated[
    Path | None, _node(metavar="FILE", help="TOML; default ~/.config/prime-node/config.toml.")
]
DataDir = Annotated[
    Path | None,
    _node(
        metavar="DIR",
        help="Key, progress, weights; default ~/.local/share/prime-node, for root "
        "/var/lib/prime-node.",
    ),
]
IdentityPath = Annotated[
    Path | None, _node(metavar="FILE", help="The node's key; default identity.key in the data dir.")
]
Device = Annotated[
    str | None,
    _node(
        metavar="DEVICE",
        help="auto (default), cpu, cuda or cuda:N.",
        autocompletion=completion.devices,
    ),
]
Engine = Annotated[
    str | None,
    _node(
        metavar="NAME",
        help="What generates: builtin (default) or vllm.",
        autocompletion=completion.values_of("engine"),
    ),
]
EngineGpus = Annotated[
    str | None, _node(metavar="N", help="GPUs over which vLLM spreads the model; default 1.")
]
EnginePython = Annotated[
    Path | None, _node(metavar="FILE", help="Interpreter of the engine processes; default our own.")
]
EngineMemory = Annotated[
    str | None, _node(metavar="SIZE", help="Most memory that one engine may fill: 24GB.")
]
EngineServer = Annotated[
    Path | None, _node(metavar="SOCKET", help="Fork server that nodes of this machine share.")
]
BlobQuota = Annotated[
    str | None, _node(metavar="SIZE", help="Most to keep of weights and rollouts: 200GB.")
]
ApiPort = Annotated[
    str | None,
    _node(metavar="PORT", help="Status, health and metrics on 127.0.0.1; 0 (default): any."),
]
LogFormat = Annotated[
    str | None,
    _node(
        metavar="FORMAT",
        help="auto (default: json off a terminal), console, json.",
        autocompletion=completion.values_of("log_format"),
    ),
]
LogLevel = Annotated[
    str | None,
    _node(
        metavar="LEVEL",
        help="debug, info (default), warning, error.",
        autocompletion=completion.values_of("log_level"),
    ),
]
LogTo = Annotated[
    list[str] | None,
    _node(
        metavar="NAME",
        help="Log training steps to jsonl, tensorboard, wandb; repeat or a,b.",
        autocompletion=completion.step_logs,
    ),
]

Host = Annotated[
    str | None, _network(metavar="IP", help="IPv4 address to listen on; default all of them.")
]
Port = Annotated[
    str | None, _network(metavar="PORT", help="TCP port to listen on; 0 (default): any.")
]
HostMaddr = Annotated[
    str | None, _network(metavar="MADDR", help="Both as one: /ip4/0.0.0.0/tcp/31337.")
]
PublicIp = Annotated[
    str | None, _network(metavar="IP", help="Address that others reach --port on, behind a NAT.")
]
AnnounceMaddrs = Annotated[
    list[str] | None,
    _network(metavar="MADDR", help="Addresses to tell others instead; repeat or a,b."),
]
HttpPort = Annotated[
    str | None,
    _network(metavar="PORT", help="Serve weights by HTTP, too, also to strangers; 0: any port."),
]
UploadLimit = Annotated[
    str | None, _network(metavar="RATE", help="Most to upload: 20MB/s or 160Mbit.")
]

Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
CommandDataDir = Annotated[
    Path | None, typer.Option("--data-dir", metavar="DIR", help="The node's data dir.")
]
CommandIdentityPath = Annotated[
    Path | None, typer.Option("--identity-path", metavar="FILE", help="The node's key.")
]
ModelVersion = Annotated[
    int | None, typer.Option(min=0, metavar="N", help="Version; default the newest one held.")
]

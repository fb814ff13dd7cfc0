"""The options of ``prime-node``, named like the keys of ``node.local.config.NodeConfig``.

Values are passed on as text: ``load_config`` parses flags, environment and file alike, so a wrong
value gives the same error from each of them.
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
        help="inference, validator, trainer or relay; repeat or a,b. A worker that is a validator "
        "too may win seats in the council.",
        autocompletion=completion.roles,
    ),
]
InitialPeers = Annotated[
    list[str] | None,
    _join(
        "--initial-peers",
        "--bootstrap",
        metavar="ADDR",
        help="Bootstrap peer: /ip4/…/tcp/…/p2p/12D3KooW…; repeat or a,b.",
    ),
]
NewSwarm = Annotated[
    bool | None, _join("--new-swarm", help="Start a new swarm for --run, without initial peers.")
]
Run = Annotated[
    Path | None, _join(metavar="RUN.toml", help="Join only the run of this signed manifest.")
]
RunId = Annotated[str | None, _join(metavar="HEX", help="Join only the run with this id.")]
Page = Annotated[
    str | None,
    _join(metavar="PAGE", help="Join only a history with this page of a join command; stored."),
]
Yes = Annotated[
    bool | None, _join("--yes", "-y", help="Join the run that the peers offer without asking.")
]
Invite = Annotated[
    str | None, _join(metavar="TOKEN", help="Invite, or a file with one; stored for later starts.")
]

Config = Annotated[
    Path | None, _node(metavar="FILE", help="TOML file; default ~/.config/prime-node/config.toml.")
]
Name = Annotated[
    str | None,
    _node(metavar="TEXT", help="Name shown to all members beside the key; 32 characters at most."),
]
DataDir = Annotated[
    Path | None,
    _node(
        metavar="DIR",
        help="Key, state and weights; default ~/.local/share/prime-node, for root "
        "/var/lib/prime-node.",
    ),
]
IdentityPath = Annotated[
    Path | None, _node(metavar="FILE", help="Node's key; default identity.key in the data dir.")
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
        help="Inference engine: builtin (default) or vllm.",
        autocompletion=completion.values_of("engine"),
    ),
]
EngineGpus = Annotated[
    str | None, _node(metavar="N", help="GPUs for tensor parallelism in vLLM; default 1.")
]
EnginePython = Annotated[
    Path | None, _node(metavar="FILE", help="Python of the engine processes; default this one.")
]
EngineMemory = Annotated[
    str | None, _node(metavar="SIZE", help="Memory limit of one engine, for example 24GB.")
]
EngineServer = Annotated[
    Path | None, _node(metavar="SOCKET", help="Engine fork server shared by nodes of this machine.")
]
TrainerRanks = Annotated[
    str | None,
    _node(metavar="N", help="Processes that train together on CPUs, one core each; default 1."),
]
TrainerDevices = Annotated[
    str | None,
    _node(metavar="GPUS", help="GPUs that train together: 0-7, or 0,2; default --device."),
]
BlobQuota = Annotated[
    str | None, _node(metavar="SIZE", help="Disk quota of weights and rollouts, for example 200GB.")
]
ApiPort = Annotated[
    str | None,
    _node(metavar="PORT", help="Control API on 127.0.0.1; 0 (default): a free port."),
]
LogFormat = Annotated[
    str | None,
    _node(
        metavar="FORMAT",
        help="auto (default: console on a terminal, else json), console or json.",
        autocompletion=completion.values_of("log_format"),
    ),
]
LogLevel = Annotated[
    str | None,
    _node(
        metavar="LEVEL",
        help="debug, info (default), warning or error.",
        autocompletion=completion.values_of("log_level"),
    ),
]
LogTo = Annotated[
    list[str] | None,
    _node(
        metavar="NAME",
        help="Log training steps to jsonl, tensorboard or wandb; repeat or a,b.",
        autocompletion=completion.step_logs,
    ),
]

Host = Annotated[str | None, _network(metavar="IP", help="IPv4 address to listen on; default all.")]
Port = Annotated[
    str | None, _network(metavar="PORT", help="TCP port to listen on; 0 (default): a free port.")
]
HostMaddr = Annotated[
    str | None,
    _network(metavar="MADDR", help="Host and port as a multiaddr: /ip4/0.0.0.0/tcp/31337."),
]
PublicIp = Annotated[
    str | None, _network(metavar="IP", help="Public address that forwards --port to this node.")
]
AnnounceMaddrs = Annotated[
    list[str] | None,
    _network(metavar="MADDR", help="Addresses to announce instead; repeat or a,b."),
]
HttpPort = Annotated[
    str | None,
    _network(metavar="PORT", help="Serve weights over HTTP to anyone; 0: a free port."),
]
UploadLimit = Annotated[
    str | None, _network(metavar="RATE", help="Upload limit, for example 20MB/s or 160Mbit.")
]

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
CommandDataDir = Annotated[
    Path | None, typer.Option("--data-dir", metavar="DIR", help="The node's data dir.")
]
CommandIdentityPath = Annotated[
    Path | None, typer.Option("--identity-path", metavar="FILE", help="The node's key.")
]
ModelVersion = Annotated[
    int | None, typer.Option(min=0, metavar="N", help="Version; default the newest on disk.")
]

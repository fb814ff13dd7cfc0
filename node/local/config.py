"""Local configuration of a node; no value here must agree between the nodes of a run.

Precedence: flag, environment variable (``PRIME_NODE_`` and the key in capitals; empty means unset),
configuration file (TOML, the same keys), default. An unknown key is an error at each level, and
every error names the place of the wrong value.
"""

import os
import re
import tomllib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from difflib import get_close_matches
from ipaddress import IPv4Address
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from node.local.addresses import PORT_MAX, check_multiaddress, check_peer_address
from node.local.devices import read_gpu_numbers
from node.local.errors import ExitCode, NodeError
from node.local.invite_token import read_invite
from node.local.units import parse_bytes, parse_rate
from protocol.consensus.trusted_page import TrustedPage
from protocol.core.types import RANKS_MAX, Role
from protocol.messages import SYSTEM_PORTS, check_node_name

ENVIRONMENT_PREFIX = "PRIME_NODE_"
CONFIG_VARIABLE = "PRIME_NODE_CONFIG"
ANY_HOST = "0.0.0.0"  # noqa: S104 - a node must be reachable; its control API is local

_CONFIG_BYTES_MAX = 64 * 1024
_SIZES = ("engine_memory", "upload_limit", "blob_quota")
"""Keys that take a unit, in the file too."""
_PATH_KEYS = ("data_dir", "identity_path", "run", "engine_python", "engine_server")
_SECTION = "trainer"
"""Table of the file whose keys begin with this name elsewhere: ``ranks`` is ``trainer_ranks``."""
_HOST_MADDR = re.compile(r"/ip4/(?P<host>[0-9.]+)/tcp/(?P<port>[0-9]+)")
_HEX_DIGEST = re.compile(r"[0-9a-f]{64}")
_DEVICE = re.compile(r"auto|cpu|cuda(:[0-9]{1,3})?")
_ConfigT = TypeVar("_ConfigT", bound=BaseModel)

StepLogName = Literal["jsonl", "tensorboard", "wandb"]


def _items(value: object) -> tuple[str, ...]:
    """Split strings at commas: ``a,b`` and ``["a", "b"]`` mean the same."""
    parts = [value] if isinstance(value, str) else value
    if not isinstance(parts, list | tuple) or not all(isinstance(part, str) for part in parts):
        raise ValueError("write a list of strings, or one string with commas")
    items = (item.strip() for part in parts for item in part.split(","))
    return tuple(dict.fromkeys(item for item in items if item))


def _roles(value: object) -> tuple[Role, ...]:
    roles = _items(value)
    if not roles:
        raise ValueError(f"no role given; the roles are {', '.join(Role)}")
    for name in roles:
        if name not in list(Role):
            raise ValueError(f"unknown role {name!r}; the roles are {', '.join(Role)}")
    return tuple(Role(name) for name in roles)


def read_step_logs(value: object) -> tuple[str, ...]:
    """Return the names of training step logs; raises ``ValueError`` for an unknown one."""
    names = _items(value)
    for name in names:
        if name not in get_args(StepLogName):
            known = ", ".join(get_args(StepLogName))
            raise ValueError(f"unknown log {name!r}; the logs are {known}")
    return names


def _peers(value: object) -> tuple[str, ...]:
    return tuple(check_peer_address(address) for address in _items(value))


def _multiaddresses(value: object) -> tuple[str, ...]:
    return tuple(check_multiaddress(address) for address in _items(value))


def _device(value: object) -> object:
    if not (isinstance(value, str) and _DEVICE.fullmatch(value)):
        raise ValueError(f"{value!r} is not a device; use auto, cpu, cuda or cuda:N")
    return value


def _ipv4(value: object) -> str:
    with suppress(ValueError):
        if isinstance(value, str):
            return str(IPv4Address(value))
    raise ValueError(f"{value!r} is not an IPv4 address")


def _run_id(value: object) -> str:
    if not (isinstance(value, str) and _HEX_DIGEST.fullmatch(value.lower())):
        raise ValueError(f"{value!r} is not a run id, which has 64 hexadecimal digits")
    return value.lower()


def _name(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("write the name as text, in quotes")  # noqa: TRY004 - for pydantic
    return check_node_name(value)


def _page(value: object) -> str:
    return str(TrustedPage.parse(str(value)))


def _invite(value: object) -> object:
    return read_invite(value) if isinstance(value, str) else value


def _path(value: object) -> object:
    return _expanded(Path(value)).absolute() if isinstance(value, str | Path) else value


def _expanded(path: Path) -> Path:
    """Expand ``~`` in a path; raises ``ValueError`` for an unknown home directory."""
    try:
        return path.expanduser()
    except RuntimeError:
        raise ValueError(f"{str(path)!r} begins with a home directory that is not known") from None


def _number(parse: Callable[[str], object]) -> BeforeValidator:
    def read(value: object) -> object:
        if isinstance(value, bool):
            raise ValueError("write a number, not true or false")  # noqa: TRY004 - for pydantic
        return parse(value) if isinstance(value, str) else value

    return BeforeValidator(read)


Port = Annotated[int, Field(ge=0, le=PORT_MAX), _number(str)]
Ipv4 = Annotated[str, BeforeValidator(_ipv4)]
LocalPath = Annotated[Path, BeforeValidator(_path)]


class LocalPaths(BaseModel):
    """Paths of a node's files: all that commands beside a running daemon need."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    data_dir: LocalPath
    """See ``node.local.datadir``."""
    identity_path: LocalPath | None = None
    """The node's key; None for ``identity.key`` in the data directory."""


class NodeConfig(LocalPaths):
    """Validated local configuration of one node."""

    roles: Annotated[tuple[Role, ...], BeforeValidator(_roles)]
    initial_peers: Annotated[tuple[str, ...], BeforeValidator(_peers)] = ()
    """Bootstrap multiaddresses, each ending in ``/p2p/<peer id>``."""
    new_swarm: bool = False
    """Start a swarm: having no peer yet is no error."""
    run: LocalPath | None = None
    """Manifest file of the required run."""
    run_id: Annotated[str, BeforeValidator(_run_id)] | None = None
    """Required run id, hexadecimal."""
    page: Annotated[str, BeforeValidator(_page)] | None = None
    """Trusted page, ``EPOCH:DIGEST``, that the history of the run must contain; the node stores
    it."""
    yes: bool = False
    """Join the run that the peers offer without confirmation."""
    invite: Annotated[bytes, BeforeValidator(_invite)] = b""
    """Invite to a run with invited keys only; the node stores it."""
    name: Annotated[str, BeforeValidator(_name)] = ""
    """Name that other members see beside the key; empty for none."""
    host: Ipv4 = ANY_HOST
    """IPv4 address to listen on for peers."""
    port: Port = 0
    """TCP port for peers; 0 for a free one."""
    announce_maddrs: Annotated[tuple[str, ...], BeforeValidator(_multiaddresses)] = ()
    """Multiaddresses announced to peers instead of those of the network interfaces."""
    public_ip: Ipv4 | None = None
    """Shorthand for one announced address, with ``port``."""
    api_port: Port = 0
    """Port of 127.0.0.1 for status, health and metrics; 0 for a free one."""
    http_port: Port | None = None
    """TCP port to serve weights over HTTP, also to untrusted peers; 0: a free one, None: off."""
    device: Annotated[str, BeforeValidator(_device)] = "auto"
    """Compute device of the engines: ``auto``, ``cpu``, ``cuda`` or ``cuda:N``."""
    engine: Literal["builtin", "vllm"] = "builtin"
    """Generation engine; validators and trainers compute with the built-in one."""
    engine_gpus: Annotated[int, Field(ge=1, le=1024), _number(str)] = 1
    """Number of GPUs, from ``device`` on, over which vLLM spreads the model."""
    engine_python: LocalPath | None = None
    """Interpreter of the engine processes; None for the daemon's own."""
    engine_memory: Annotated[int, Field(ge=1), _number(parse_bytes)] | None = None
    """Limit of host memory per engine, in bytes; None for no limit."""
    engine_server: LocalPath | None = None
    """Socket of a fork server shared by the nodes of a machine; None starts a private one."""
    trainer_ranks: Annotated[int, Field(ge=1, le=RANKS_MAX), _number(str)] | None = None
    """Processes that compute a training step together on CPUs; None for one, on ``device``."""
    trainer_devices: Annotated[
        tuple[int, ...], Field(max_length=RANKS_MAX), BeforeValidator(read_gpu_numbers)
    ] = ()
    """GPUs that compute a training step together, a process each; empty for ``device``."""
    shadow: bool = True
    """As a trainer that does not lead: repeat the steps of the leader, and report the results."""
    upload_limit: Annotated[int, Field(ge=1), _number(parse_rate)] | None = None
    """Upload bandwidth for blobs in bytes per second, with headers; None for no limit."""
    blob_quota: Annotated[int, Field(ge=1), _number(parse_bytes)] | None = None
    """Bytes of blobs to keep; None for the run's retention."""
    log_format: Literal["auto", "console", "json"] = "auto"
    """``auto`` is ``console`` on a terminal and ``json`` elsewhere."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_to: Annotated[tuple[StepLogName, ...], BeforeValidator(read_step_logs)] = ()
    """Logs of training steps, written to ``training`` in the data directory."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.new_swarm and self.initial_peers:
            raise ValueError("--new-swarm and --initial-peers exclude each other")
        if self.public_ip is not None and self.announce_maddrs:
            raise ValueError("--public-ip and --announce-maddrs exclude each other")
        if self.public_ip is not None and self.port == 0:
            raise ValueError("--public-ip needs the --port that it is reached on")
        if self.http_port is not None and 0 < self.http_port < SYSTEM_PORTS:
            raise ValueError(f"--http-port: peers connect to no port below {SYSTEM_PORTS}")
        if self.engine_gpus > 1 and self.engine != "vllm":
            raise ValueError("--engine-gpus is for --engine vllm")
        if self.trainer_ranks is not None and self.trainer_devices:
            raise ValueError("--trainer-ranks and --trainer-devices exclude each other")
        if (self.trainer_ranks or 1) > 1 and self.device.startswith("cuda"):
            raise ValueError("--trainer-ranks is for CPUs; name the GPUs with --trainer-devices")
        return self

    @property
    def training_devices(self) -> tuple[str, ...]:
        """Device of each rank of the trainer."""
        if self.trainer_devices:
            return tuple(f"cuda:{number}" for number in self.trainer_devices)
        ranks = self.trainer_ranks or 1
        return ("cpu",) * ranks if ranks > 1 else (self.device,)

    @property
    def announce(self) -> tuple[str, ...]:
        """Multiaddresses to announce; empty for those of the network interfaces."""
        if self.public_ip is not None:
            return (f"/ip4/{self.public_ip}/tcp/{self.port}",)
        return self.announce_maddrs


def load_config(
    flags: Mapping[str, object], environment: Mapping[str, str], file: Path | None = None
) -> NodeConfig:
    """Merge the sources and validate; ``flags`` has the keys of ``NodeConfig``, None for unset.

    Reads ``file``, else the file that ``PRIME_NODE_CONFIG`` names, else the default one if it
    exists. Raises ``NodeError`` with the usage code for a wrong flag, else the configuration code.
    """
    layers = _layers(flags, environment, file)
    if "roles" not in layers.values:
        raise NodeError(
            f"no role given; choose with --role one or more of {', '.join(Role)}", ExitCode.USAGE
        )
    return _validated(NodeConfig, layers.values, layers)


def load_paths(flags: Mapping[str, object], environment: Mapping[str, str]) -> LocalPaths:
    """Return the paths of the node's files without validating other keys."""
    layers = _layers(flags, environment, None)
    paths = {key: layers.values[key] for key in LocalPaths.model_fields if key in layers.values}
    return _validated(LocalPaths, paths, layers)


def flag(key: str) -> str:
    """Return the command-line flag of ``key``."""
    name = "role" if key == "roles" else key
    return f"--{name.replace('_', '-')}"


def default_data_dir(environment: Mapping[str, str]) -> Path:
    """Return ``/var/lib/prime-node`` for root, else ``prime-node`` in the XDG data directory.

    Raises ``NodeError`` for a user without a home directory.
    """
    if os.geteuid() == 0:
        return Path("/var/lib/prime-node")
    base = _xdg(environment, "XDG_DATA_HOME", ".local/share")
    if base is None:
        raise NodeError(
            "this user has no home directory; choose one for the node's files with --data-dir "
            f"or {ENVIRONMENT_PREFIX}DATA_DIR",
            ExitCode.CONFIG,
        )
    return base / "prime-node"


def runtime_directories(environment: Mapping[str, str]) -> tuple[Path, ...]:
    """Return the search path of scoring runtimes; new ones are made in its first directory.

    Runtimes are outside the data directories: all nodes of a machine share them.
    """
    machine = Path("/var/lib/prime-node-scoring")
    if not environment.get("XDG_DATA_HOME") and os.geteuid() == 0:
        return (machine,)
    base = _xdg(environment, "XDG_DATA_HOME", ".local/share")
    return (machine,) if base is None else (base / "prime-node-scoring", machine)


def default_config_file(environment: Mapping[str, str]) -> Path | None:
    """Return the XDG path of the configuration file; None for a user without a home directory."""
    base = _xdg(environment, "XDG_CONFIG_HOME", ".config")
    return None if base is None else base / "prime-node" / "config.toml"


def _xdg(environment: Mapping[str, str], variable: str, below_home: str) -> Path | None:
    if environment.get(variable):
        return Path(environment[variable])
    try:
        return Path.home() / below_home
    except RuntimeError:  # no HOME, and no entry in the user database
        return None


@dataclass(frozen=True, slots=True)
class _Layers:
    """Merged values, with the origin and the exit code of each."""

    values: dict[str, Any] = field(default_factory=dict)
    origins: dict[str, tuple[str, ExitCode]] = field(default_factory=dict)

    def add(
        self, values: Mapping[str, object], label: Callable[[str], str], exit_code: ExitCode
    ) -> None:
        """Override present values by ``values``."""
        for key, value in _with_host_maddr(values, label, exit_code).items():
            if key not in NodeConfig.model_fields:
                raise NodeError(f"{label(key)}: unknown key{_hint(key, label)}", exit_code)
            self.values[key] = repr(value) if key in _SIZES and _is_number(value) else value
            written = "host_maddr" if "host_maddr" in values and key in ("host", "port") else key
            self.origins[key] = label(written), exit_code


def _layers(
    flags: Mapping[str, object], environment: Mapping[str, str], file: Path | None
) -> _Layers:
    layers = _Layers()
    variables = {
        name.removeprefix(ENVIRONMENT_PREFIX).lower(): value
        for name, value in environment.items()
        if name.startswith(ENVIRONMENT_PREFIX) and name != CONFIG_VARIABLE and value
    }
    path = _config_file(environment, file)
    if path is not None:
        layers.add(_read_file(path), lambda key: f"{path}: {_file_key(key)}", ExitCode.CONFIG)
    layers.add(variables, lambda key: f"{ENVIRONMENT_PREFIX}{key.upper()}", ExitCode.CONFIG)
    given = {key: value for key, value in flags.items() if value is not None}
    layers.add(given, flag, ExitCode.USAGE)
    if "data_dir" not in layers.values:
        layers.values["data_dir"] = default_data_dir(environment)
    return layers


def _config_file(environment: Mapping[str, str], file: Path | None) -> Path | None:
    if file is not None:
        return file
    if environment.get(CONFIG_VARIABLE):
        return Path(environment[CONFIG_VARIABLE])
    usual = default_config_file(environment)
    return usual if usual is not None and usual.exists() else None


def _read_file(path: Path) -> dict[str, Any]:
    """Return the file's keys; relative paths are relative to the file."""
    try:
        with path.open("rb") as file:
            values = tomllib.loads(file.read(_CONFIG_BYTES_MAX).decode("utf-8-sig"))
    except OSError as error:
        raise NodeError(
            f"cannot read config file {path}: {error.strerror}", ExitCode.CONFIG
        ) from None
    except ValueError as error:  # invalid UTF-8 or TOML
        raise NodeError(f"{path}: not TOML: {error}", ExitCode.CONFIG) from None
    section = values.get(_SECTION)
    if isinstance(section, dict):
        del values[_SECTION]
        values |= {f"{_SECTION}_{key}": value for key, value in section.items()}
    for key in _PATH_KEYS:
        if isinstance(values.get(key), str) and not values[key].startswith("~"):
            values[key] = path.parent / values[key]
    return values


def _file_key(key: str) -> str:
    """Return a key as the file has it."""
    return key.replace(f"{_SECTION}_", f"{_SECTION}.", 1) if key.startswith(_SECTION) else key


def _with_host_maddr(
    values: Mapping[str, object], label: Callable[[str], str], exit_code: ExitCode
) -> dict[str, object]:
    """Replace ``host_maddr``, an alternative to ``host`` and ``port``."""
    result = dict(values)
    if "host_maddr" not in result:
        return result
    if "host" in result or "port" in result:
        raise NodeError(
            f"{label('host_maddr')} already says host and port; leave those out", exit_code
        )
    text = result.pop("host_maddr")
    match = _HOST_MADDR.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise NodeError(
            f"{label('host_maddr')}: {text!r} is not of the form /ip4/{ANY_HOST}/tcp/31337",
            exit_code,
        )
    return result | match.groupdict()


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _hint(key: str, label: Callable[[str], str]) -> str:
    close = get_close_matches(key, [*NodeConfig.model_fields, "host_maddr"], n=1)
    return f"; did you mean {label(close[0]).rpartition(': ')[2]}?" if close else ""


def _validated(model: type[_ConfigT], values: Mapping[str, Any], layers: _Layers) -> _ConfigT:
    try:
        return model.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
    message = first["msg"].removeprefix("Value error, ")
    if not first["loc"]:
        flags = any(code is ExitCode.USAGE for _, code in layers.origins.values())
        raise NodeError(message, ExitCode.USAGE if flags else ExitCode.CONFIG)
    label, exit_code = layers.origins[str(first["loc"][0])]
    if first["type"] != "value_error":
        message = f"{first['input']!r}: {message[:1].lower()}{message[1:]}"
    raise NodeError(f"{label}: {message}", exit_code)

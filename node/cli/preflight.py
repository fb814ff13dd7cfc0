"""Cheap checks of the configuration before a node starts.

Engines take seconds to import; configuration errors appear before that.
"""

from importlib.util import find_spec

from node.api.step_logs.base import require_libraries
from node.founding.needs import require_room
from node.local.addresses import load_cached_peers
from node.local.config import NodeConfig, flag
from node.local.datadir import API_HOST, load_or_create_identity, locked, open_data_dir
from node.local.devices import why_no_device
from node.local.errors import ExitCode, NodeError
from node.local.run_pin import local_run
from node.local.scoring_runtime import scoring_digest
from node.local.sockets import listen
from protocol.core.types import Role


def preflight(config: NodeConfig) -> None:
    """Check data dir, ports, key, run and initial peers; raises ``NodeError`` for the first error.

    The lock is released again: ``node.process.runner`` takes it for the life of the node.
    """
    if config.engine == "vllm" and config.engine_python is None and find_spec("vllm") is None:
        raise NodeError(
            "--engine vllm: vLLM is not installed here; name the interpreter of an environment "
            "that has it with --engine-python",
            ExitCode.CONFIG,
        )
    require_libraries(config.log_to)
    _check_devices(config)
    datadir = open_data_dir(config.data_dir)
    if datadir.conflict.exists():
        raise NodeError(
            f"two histories of this run are final: the proof is in {datadir.conflict}; agree with "
            "other members on one, then delete the file to go on with the history of this data "
            "dir, or join with an empty --data-dir and the --page of the other",
            ExitCode.HISTORY,
        )
    with locked(datadir):
        _check_ports(config)
        load_or_create_identity(config.identity_path or datadir.identity)
        run = local_run(datadir, config.run, config.run_id)
    if run is not None:
        scoring_digest(run.manifest, config)  # raises if the run's runtime is missing
        require_room(run.manifest, config, datadir)
    if config.new_swarm and run is None:
        raise NodeError(
            "--new-swarm needs a run: give its signed manifest with --run RUN.toml",
            ExitCode.USAGE,
        )
    if not (config.initial_peers or config.new_swarm or load_cached_peers(datadir)):
        raise NodeError(
            "no peer to join through: give one with --initial-peers ADDR, "
            "or start a new swarm with --new-swarm --run RUN.toml",
            ExitCode.USAGE,
        )


def _check_devices(config: NodeConfig) -> None:
    """Raise ``NodeError`` for a device that the engines could not use."""
    chosen = []
    if set(config.roles) != {Role.RELAY}:
        chosen.append((config.device, "--device"))
    if Role.TRAINER in config.roles and config.trainer_devices:
        chosen += [(device, "--trainer-devices") for device in config.training_devices]
    for device, option in chosen:
        own_torch = config.engine_python is None
        if reason := why_no_device(device, own_torch=own_torch, option=option):
            raise NodeError(reason, ExitCode.CONFIG)


def _check_ports(config: NodeConfig) -> None:
    """Bind each port for a moment; raises ``NodeError`` when one is in use."""
    ports = {"port": config.port, "api_port": config.api_port, "http_port": config.http_port}
    for key, port in ports.items():
        host = API_HOST if key == "api_port" else config.host
        listen(
            host,
            port or 0,
            failure=f"cannot listen for {flag(key)}",
            remedy=f"choose another {flag(key)}, or 0 for a free one",
        ).close()

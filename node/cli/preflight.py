"""What is checked before a node starts: everything cheap that a person can get wrong.

Engines take seconds to import; a mistake should be told before that.
"""

from importlib.util import find_spec

from node.local.addresses import load_cached_peers
from node.local.config import NodeConfig
from node.local.datadir import load_or_create_identity, locked, open_data_dir
from node.local.errors import ExitCode, NodeError
from node.local.run_pin import local_run


def preflight(config: NodeConfig) -> None:
    """Look at data dir, key, run and way in; raises ``NodeError`` for the first that is wrong.

    The lock is tried and given back: ``node.live.node`` takes it for the life of the node.
    """
    if config.engine == "vllm" and config.engine_python is None and find_spec("vllm") is None:
        raise NodeError(
            "--engine vllm: vLLM is not installed here; name the interpreter of an environment "
            "that has it with --engine-python",
            ExitCode.CONFIG,
        )
    datadir = open_data_dir(config.data_dir)
    with locked(datadir):
        load_or_create_identity(config.identity_path or datadir.identity)
        run = local_run(datadir, config.run, config.run_id)
    if config.new_swarm and run is None:
        raise NodeError(
            "--new-swarm needs a run to begin: give its signed manifest with --run RUN.toml",
            ExitCode.USAGE,
        )
    if not (config.initial_peers or config.new_swarm or load_cached_peers(datadir)):
        raise NodeError(
            "no peer to join through: give one with --initial-peers ADDR, "
            "or begin a swarm with --new-swarm --run RUN.toml",
            ExitCode.USAGE,
        )

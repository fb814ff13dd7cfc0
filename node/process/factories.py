"""Factories of a live node's engines and ports; an adversary of the testnet has its own."""

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from node.local.config import NodeConfig, runtime_directories
from node.local.datadir import DataDir
from protocol.core.crypto import Identity
from roles.ports.background import Background
from roles.ports.engines import Engines

if TYPE_CHECKING:
    from node.context import Ports
    from protocol.replica.replica import Replica

MakeEngines = Callable[[NodeConfig, Background], Engines]

MakePorts = Callable[["Ports", Identity, Callable[[], "Replica | None"]], "Ports"]
"""``(ports, identity, replica)`` -> ports of the daemon; ``replica`` returns None at first."""


def live_ports(
    ports: "Ports", _identity: Identity, _replica: Callable[[], "Replica | None"]
) -> "Ports":
    """Return the live ports unchanged."""
    return ports


def live_engines(config: NodeConfig, background: Background) -> Engines:
    """Return engines that compute in their own processes."""
    from roles.engines.subprocess.client import ChildEngines  # noqa: PLC0415 - not for a relay's start
    from roles.engines.subprocess.process import EngineProcesses  # noqa: PLC0415 - the same

    return ChildEngines(
        EngineProcesses(config.engine_python, config.engine_server, config.engine),
        background,
        DataDir(config.data_dir).task,
        config.device,
        engine=config.engine,
        gpus=config.engine_gpus,
        training_devices=config.training_devices,
        memory_bytes_max=config.engine_memory,
        runtimes=runtime_directories(os.environ),
    )

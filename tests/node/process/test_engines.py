from pathlib import Path

import pytest

from node.local.config import NodeConfig
from node.process.factories import live_engines
from protocol.core.types import Role
from roles.engines.subprocess import client, process
from simulations.runtime.loop import SimBackground


@pytest.mark.parametrize("engine", ["builtin", "vllm"])
def test_configured_engine_options_reach_the_engine_process(tmp_path, monkeypatch, engine):
    python = Path("/opt/vllm/bin/python")
    config = NodeConfig(
        roles=(Role.INFERENCE,),
        data_dir=tmp_path,
        device="cuda:1",
        engine=engine,
        engine_gpus=2 if engine == "vllm" else 1,
        engine_python=python,
        engine_memory="3GB",
        trainer_devices="4-5",
    )
    made, processes = [], []
    monkeypatch.setattr(client, "ChildEngines", lambda *chosen, **more: made.append((chosen, more)))
    monkeypatch.setattr(process, "EngineProcesses", lambda *chosen: processes.append(chosen))
    live_engines(config, SimBackground())
    (((*_, device), options),) = made
    assert (options["engine"], options["gpus"], device) == (engine, config.engine_gpus, "cuda:1")
    assert options["training_devices"] == ("cuda:4", "cuda:5")
    assert options["memory_bytes_max"] == 3 * 10**9
    assert processes == [(python, config.engine_server, engine)]

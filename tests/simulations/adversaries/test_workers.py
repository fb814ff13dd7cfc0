from dataclasses import replace

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from node.testnet.plan import CHEATER_KINDS
from protocol.core.crypto import digest, policy_digest
from protocol.core.types import Version
from protocol.toploc.proof import Variant, build_proofs_batch, proof_fault
from roles.environments.base import END
from roles.environments.characters import Arithmetic
from roles.environments.threaded import InBackground
from roles.ports.engines import Answer, Generation, GenerationRequest, Policy
from roles.ports.swarm import RefusedError
from simulations.adversaries import testnet
from simulations.adversaries.testnet import WEIGHT_NOISE, perturb_policy
from simulations.adversaries.workers import WORKER_BEHAVIOURS
from simulations.runtime.loop import SimBackground
from tests.worlds.messages import run_manifest

HIDDEN = 16
MANIFEST = run_manifest()
TASK = Arithmetic()
ENVIRONMENT = InBackground(TASK, SimBackground())
REQUESTS = [GenerationRequest(TASK.prompt(seed, None), seed, 8) for seed in range(6)]


class HonestEngine:
    """Answers every problem right; records the policies that it loads."""

    def __init__(self):
        self.loaded: list[Policy] = []

    async def load(self, policy):
        if file_digest(policy.path) != policy.digest:
            raise ValueError("not the policy it says")
        self.loaded.append(policy)

    async def generate(self, requests, temperature):
        return [self._generation(request) for request in requests]

    def _generation(self, request):
        tokens = TASK.solution(request.seed)
        states = np.random.default_rng(request.seed).standard_normal((len(tokens), HIDDEN))
        proofs = build_proofs_batch([states.astype(np.float32)], top_k=128)[0]
        return Generation(tokens, (-0.1,) * len(tokens), tuple(proofs))


class HonestEngines:
    def __init__(self):
        self.engine = HonestEngine()

    def environment(self, _manifest):
        return ENVIRONMENT

    def generation(self, _manifest):
        return self.engine

    def verification(self, _manifest):
        return None


def dishonest(kind, honest=None):
    """Return the engine and the task of a testnet worker with behaviour ``kind``."""
    engines = getattr(testnet, kind.replace("-", "_"))(honest or HonestEngines())
    return engines.generation(MANIFEST), engines.environment(MANIFEST)


def file_digest(path):
    return policy_digest(
        (name, "F32", tensor.shape, digest(tensor.tobytes()))
        for name, tensor in load_file(path).items()
    )


def policy(directory, version: int) -> Policy:
    path = directory / f"{version}.safetensors"
    weights = np.random.default_rng(version).standard_normal((8, 8), dtype=np.float32)
    save_file({"weight": weights, "bias": weights[0]}, path)
    return Policy(Version(version), file_digest(path), path)


async def generations(kind: str, directory) -> list[Generation]:
    engine, _ = dishonest(kind)
    await engine.load(policy(directory, 0))
    return await engine.generate(REQUESTS, 1.0)


async def honest() -> list[Generation]:
    return await HonestEngine().generate(REQUESTS, 1.0)


def test_the_kinds_are_those_that_the_testnet_asks_for():
    assert tuple(WORKER_BEHAVIOURS) == CHEATER_KINDS


@pytest.mark.parametrize("kind", WORKER_BEHAVIOURS)
def test_only_one_port_is_replaced(kind):
    honest = HonestEngines()
    engine, task = dishonest(kind, honest)
    assert (engine is honest.engine) is (kind == "forged-rewards")
    assert (task is ENVIRONMENT) is (kind not in ("forged-rewards", "adaptive-choice"))


async def test_a_stale_worker_loads_the_version_before_the_one_it_claims(tmp_path):
    honest_engines = HonestEngines()
    worker, _ = dishonest("stale-weights", honest_engines)
    first, second, fifth = (policy(tmp_path, version) for version in (0, 1, 5))
    for _ in range(2):
        with pytest.raises(RefusedError, match="no policy before version 0"):
            await worker.load(first)
    await worker.load(second)
    first.path.unlink()
    second.path.unlink()
    await worker.load(fifth)
    assert [item.digest for item in honest_engines.engine.loaded] == [first.digest, second.digest]
    assert await worker.generate(REQUESTS, 1.0) == await honest()


async def test_a_version_that_learned_nothing_is_no_other_policy(tmp_path):
    worker, _ = dishonest("stale-weights")
    first = policy(tmp_path, 0)
    with pytest.raises(RefusedError):
        await worker.load(first)
    with pytest.raises(RefusedError):
        await worker.load(replace(first, version=Version(1)))


async def test_other_weights_are_close_to_the_claimed_ones_and_load(tmp_path):
    honest_engines = HonestEngines()
    worker, _ = dishonest("other-weights", honest_engines)
    claimed = policy(tmp_path, 3)
    await worker.load(claimed)
    (loaded,) = honest_engines.engine.loaded
    assert loaded.version == claimed.version
    assert loaded.digest != claimed.digest
    honest_weight, weight = (load_file(item.path)["weight"] for item in (claimed, loaded))
    error = np.abs(weight / honest_weight - 1)
    assert 0.2 * WEIGHT_NOISE < error.mean() < 2 * WEIGHT_NOISE


def test_bf16_weights_are_perturbed_too(tmp_path):
    source, target = tmp_path / "source", tmp_path / "target"
    header = b'{"w":{"dtype":"BF16","shape":[4],"data_offsets":[0,8]}}'
    body = bytes(range(8))
    source.write_bytes(len(header).to_bytes(8, "little") + header + body)
    perturbed = perturb_policy(source, target, seed=1)
    written = target.read_bytes()
    assert written[: 8 + len(header)] == source.read_bytes()[: 8 + len(header)]
    assert written[-8:] != body
    assert perturbed == policy_digest([("w", "BF16", (4,), digest(written[-8:]))])


def test_a_dtype_without_noise_is_an_error(tmp_path):
    source = tmp_path / "source"
    header = b'{"w":{"dtype":"I64","shape":[1],"data_offsets":[0,8]}}'
    source.write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
    with pytest.raises(ValueError, match="I64"):
        perturb_policy(source, tmp_path / "target", seed=1)


async def test_edited_tokens_differ_in_one_place_and_keep_everything_else(tmp_path):
    forged = await generations("edited-tokens", tmp_path)
    for claim, truth in zip(forged, await honest(), strict=True):
        differing = [a != b for a, b in zip(claim.tokens, truth.tokens, strict=True)]
        assert sum(differing) == 1
        assert claim.tokens[-1] == END
        assert all(1 < token < len(TASK.vocabulary) for token in claim.tokens[:-1])
        assert replace(claim, tokens=truth.tokens) == truth


async def test_an_answer_that_is_only_its_end_cannot_be_edited(tmp_path):
    honest_engines = HonestEngines()
    worker, _ = dishonest("edited-tokens", honest_engines)
    empty = Generation((END,), (-0.1,), (b"",))
    honest_engines.engine._generation = lambda request: empty
    assert await worker.generate(REQUESTS[:1], 1.0) == [empty]


async def test_forged_proofs_are_well_formed_and_other_than_the_true_ones(tmp_path):
    forged = await generations("forged-proofs", tmp_path)
    for claim, truth in zip(forged, await honest(), strict=True):
        assert replace(claim, proofs=truth.proofs) == truth
        assert claim.proofs != truth.proofs
        fault = proof_fault(claim.proofs, len(claim.tokens), hidden=HIDDEN, variant=Variant.FP32)
        assert fault is None


async def test_forged_rewards_turn_right_and_wrong_around(tmp_path):
    _, task = dishonest("forged-rewards")
    await task.open()
    assert task.name == TASK.name
    assert await task.prompt(7, 12) == TASK.prompt(7, 12) != TASK.prompt(7, None)
    answers = [Answer(7, TASK.solution(7)), Answer(7, (2, END))]
    assert await task.score_batch(answers) == [0.0, 1.0 - TASK.score(7, (2, END))]

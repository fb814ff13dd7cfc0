"""Failures inside real engines, and their recovery."""

import weakref

import pytest
import torch

from roles.engines.builtin import generation, verification
from roles.engines.builtin.decoder import Decoder
from roles.engines.builtin.generation import TransformersGenerationEngine
from roles.engines.builtin.verification import TransformersVerificationEngine
from roles.engines.training.engine import TorchTrainingEngine
from roles.ports.engines import EngineError, GenerationRequest, Policy, VerificationRequest
from tests.roles.engines.tiny import grpo, model, sampling, toploc
from tests.roles.engines.training.batches import batch_of

REQUESTS = [GenerationRequest((2, 3, 4), seed, 6) for seed in range(4)]

BROKEN = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
    RuntimeError("CUDA error: device-side assert triggered"),
    MemoryError(),
    IndexError("index out of range in self"),
    ValueError("a library's own"),
    StopIteration(),
    SystemExit(1),
]
broken = pytest.mark.parametrize("error", BROKEN, ids=lambda error: type(error).__name__)


@pytest.fixture
def engines():
    made = (
        TransformersGenerationEngine(model(), toploc()),
        TransformersVerificationEngine(model(), toploc()),
        TorchTrainingEngine(model(), sampling(), grpo(updates_per_version=2)),
    )
    yield made
    for engine in made:
        engine.close()


@pytest.fixture
def freed(monkeypatch):
    """A list with one entry per release of a device's cached memory."""
    calls = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: calls.append(None))
    return calls


def raising(error, *, after=0):
    """Return a function that raises ``error`` after ``after`` calls."""
    calls = []

    def raise_it(*_arguments, **_options):
        calls.append(None)
        if len(calls) > after:
            raise type(error)(*error.args)

    return raise_it


def preceded(first, function):
    """Return ``function`` with ``first`` called before it each time."""

    def both(*arguments, **options):
        first()
        return function(*arguments, **options)

    return both


def told(error) -> str:
    return f"{type(error).__name__}: {error}".removesuffix(": ")


async def claims(generator):
    made = await generator.generate(REQUESTS, 1.0)
    return [
        VerificationRequest(one.prompt, one.seed, item.tokens, item.logprobs, item.proofs)
        for one, item in zip(REQUESTS, made, strict=True)
    ]


@broken
async def test_generation_that_breaks_is_told_and_goes_on(engines, policies, freed, error):
    generator, *_ = engines
    await generator.load(policies[0])
    before = await generator.generate(REQUESTS, 1.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Decoder, "step", raising(error))
        with pytest.raises(EngineError) as raised:
            await generator.generate(REQUESTS, 1.0)
    assert str(raised.value) == told(error)
    assert "raise_it" in raised.value.trace
    assert len(freed) == 1
    assert await generator.generate(REQUESTS, 1.0) == before


@broken
async def test_a_prefill_that_breaks_is_told_and_is_no_measurement(engines, policies, freed, error):
    generator, verifier, _ = engines
    await generator.load(policies[0])
    await verifier.load(policies[0])
    claimed = await claims(generator)
    before = await verifier.measure(policies[0].version, claimed, 1.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verifier._models[0].model, "forward", raising(error))
        with pytest.raises(EngineError) as raised:
            await verifier.measure(policies[0].version, claimed, 1.0)
    assert str(raised.value) == told(error)
    assert len(freed) == 1
    assert await verifier.measure(policies[0].version, claimed, 1.0) == before


@broken
@pytest.mark.parametrize("where", ["forward", "optimizer"])
async def test_a_step_that_breaks_leaves_nothing_half_learned(
    engines, policies, freed, tmp_path, error, where
):
    *_, trainer = engines
    await trainer.load_policy(policies[0])
    await trainer.step(batch_of())
    state = tmp_path / "state"
    await trainer.save_state(state)
    policy = await trainer.write_policy(tmp_path / "policy")
    expected = await trainer.step(batch_of(1))
    expected_policy = await trainer.write_policy(tmp_path / "next")
    await trainer.load_state(state, policy)
    held = trainer._learner
    holder, name = (
        (held.model.causal.model, "forward") if where == "forward" else (held.optimizer, "step")
    )
    model_left = weakref.ref(held.model)
    del held
    with pytest.MonkeyPatch.context() as patch:
        second_breaks = preceded(raising(error, after=1), getattr(holder, name))
        patch.setattr(holder, name, second_breaks)
        with pytest.raises(EngineError) as raised:
            await trainer.step(batch_of(1))
    assert str(raised.value) == told(error)
    assert len(freed) == 1
    for use in (trainer.write_policy, trainer.save_state):
        with pytest.raises(EngineError, match="no policy is loaded"):
            await use(tmp_path / "half")
    assert not (tmp_path / "half").exists()
    del holder, second_breaks, patch
    assert model_left() is None, "the memory is there for what is loaded next"
    await trainer.load_state(state, policy)
    assert await trainer.step(batch_of(1)) == expected
    assert await trainer.write_policy(tmp_path / "again") == expected_policy


async def test_what_a_failed_call_held_is_free_when_the_cache_is_emptied(
    engines, policies, monkeypatch
):
    """A stored traceback would keep the tensors of its frames: the retry would lack memory."""
    generator, *_ = engines
    await generator.load(policies[0])
    held, alive = [], []

    def fail(*_arguments):
        activations = torch.zeros(10)
        held.append(weakref.ref(activations))
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: alive.append(held[0]() is not None))
    monkeypatch.setattr(Decoder, "step", fail)
    with pytest.raises(EngineError):
        await generator.generate(REQUESTS, 1.0)
    assert alive == [False]


@pytest.mark.parametrize("module", [generation, verification], ids=["generation", "verification"])
async def test_a_policy_that_cannot_be_loaded_now_is_not_refused(
    engines, policies, monkeypatch, module
):
    """A refusal means other tensors; the file would be deleted."""
    engine = engines[0] if module is generation else engines[1]
    name = "Decoder" if module is generation else "Head"
    with monkeypatch.context() as patch:
        patch.setattr(module, name, raising(torch.OutOfMemoryError("CUDA out of memory")))
        with pytest.raises(EngineError, match="OutOfMemoryError"):
            await engine.load(policies[0])
    await engine.load(policies[0])
    other = Policy(policies[0].version, policies[1].digest, policies[0].path)
    with pytest.raises(ValueError, match="does not hold the policy"):
        await engine.load(other)


async def test_what_has_a_meaning_of_its_own_comes_as_it_is(engines, policies):
    generator, verifier, _ = engines
    with pytest.raises(EngineError, match="no policy is loaded"):
        await generator.generate(REQUESTS, 1.0)
    with pytest.raises(LookupError, match="not kept"):
        await verifier.measure(policies[0].version, [], 1.0)
    for engine in (generator, verifier):
        await engine.load(policies[0])
    with pytest.raises(ValueError, match="temperature"):
        await generator.generate(REQUESTS, 0.0)
    with pytest.raises(ValueError, match="temperature"):
        await verifier.measure(policies[0].version, [], 0.0)

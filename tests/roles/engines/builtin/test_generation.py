import asyncio
import resource
import threading
from dataclasses import replace

import psutil
import pytest
import torch
from safetensors.torch import load_file

from roles.engines.architectures.configuration import configuration
from roles.engines.builtin import cache, generation
from roles.engines.builtin.batching import decode
from roles.engines.builtin.decoder import Decoder
from roles.engines.builtin.generation import TransformersGenerationEngine
from roles.ports.engines import EngineError, GenerationRequest, Policy
from tests.roles.engines.tiny import model, toploc
from tests.worlds.network import eventually


@pytest.fixture
def engine():
    made = TransformersGenerationEngine(model(), toploc(), batch_sequences_max=8)
    yield made
    made.close()


def raising(error):
    def raise_it(*_):
        raise type(error)(*error.args)

    return raise_it


def requests(count, tokens_max=12):
    return [GenerationRequest((2 + i % 9, 3, 4), 2**64 - 1 - i, tokens_max) for i in range(count)]


async def test_a_seed_repeats_its_sequence_in_any_company(engine, policies):
    await engine.load(policies[0])
    together = await engine.generate(requests(20), 1.0)
    alone = [(await engine.generate([request], 1.0))[0] for request in requests(20)]
    assert [one.tokens for one in together] == [one.tokens for one in alone]
    assert len({one.tokens for one in together}) > 10


async def test_every_sequence_has_its_log_probabilities_and_proofs(engine, policies):
    await engine.load(policies[0])
    for one in await engine.generate(requests(20), 1.0):
        assert 1 <= len(one.tokens) == len(one.logprobs) <= 12
        assert len(one.tokens) == 12 or one.tokens[-1] == 1
        assert len(one.proofs) == -(-len(one.tokens) // 8)
        assert all(len(proof) == 2 + 4 * 16 for proof in one.proofs)
        assert all(-50 < logprob <= 0 for logprob in one.logprobs)


async def test_sampling_draws_from_the_softmax(engine, policies, tiny_config):
    await engine.load(policies[0])
    draws = 4000
    sampled = await engine.generate(
        [GenerationRequest((5, 6), seed, 1) for seed in range(draws)], 2.0
    )
    decoder = Decoder(configuration("qwen2", tiny_config), load_file(policies[0].path))
    state = decode(decoder, [(5, 6)], [1], 1.0, lambda *_: None)[0].states
    expected = (state @ load_file(policies[0].path)["lm_head.weight"].T / 2.0).softmax(-1)[0]
    counts = torch.bincount(torch.tensor([one.tokens[0] for one in sampled]), minlength=32)
    deviations = (counts / draws - expected) / (expected * (1 - expected) / draws).sqrt()
    assert deviations.abs().max() < 4.5


async def test_a_refused_policy_leaves_the_old_one(engine, policies):
    await engine.load(policies[0])
    before = await engine.generate(requests(4), 1.0)
    with pytest.raises(ValueError, match="does not hold the policy"):
        await engine.load(Policy(policies[0].version, policies[1].digest, policies[0].path))
    assert await engine.generate(requests(4), 1.0) == before
    await engine.load(policies[1])
    assert await engine.generate(requests(4), 1.0) != before


async def test_impossible_requests_are_refused(engine, policies):
    with pytest.raises(RuntimeError, match="no policy"):
        await engine.generate(requests(1), 1.0)
    await engine.load(policies[0])
    assert await engine.generate([], 1.0) == []
    for request in (GenerationRequest((), 1, 4), GenerationRequest((2,), 1, 0)):
        with pytest.raises(ValueError, match="prompt"):
            await engine.generate([request], 1.0)
    with pytest.raises(ValueError, match="temperature"):
        await engine.generate(requests(1), 0.0)


async def test_bf16_engines_write_published_proofs(policies):
    engine = TransformersGenerationEngine(model(), toploc("bf16"))
    await engine.load(policies[0])
    one = (await engine.generate(requests(1), 1.0))[0]
    engine.close()
    assert all(len(proof) == 2 + 2 * 16 for proof in one.proofs)


async def test_calls_that_run_together_give_what_they_give_alone(engine, policies):
    await engine.load(policies[0])
    parts = [requests(20)[start : start + 4] for start in range(0, 20, 4)]
    alone = [await engine.generate(part, 1.0) for part in parts]
    before = engine.tokens_sampled
    together = await asyncio.gather(*(engine.generate(part, 1.0) for part in parts))
    assert [[one.tokens for one in part] for part in together] == [
        [one.tokens for one in part] for part in alone
    ]
    assert engine.tokens_sampled - before == sum(len(one.tokens) for p in alone for one in p)


async def test_calls_share_their_steps(engine, policies, monkeypatch):
    """Two concurrent calls of four rows are computed as eight rows."""
    await engine.load(policies[0])
    rows, step = [], Decoder.step

    def noted(decoder, tokens, caches):
        rows.append(len(tokens))
        return step(decoder, tokens, caches)

    monkeypatch.setattr(Decoder, "step", noted)
    slow = threading.Event()
    engine._executor.submit(slow.wait)  # both are queued when it begins
    calls = [asyncio.create_task(engine.generate(requests(4), 1.0)) for _ in range(2)]
    await asyncio.sleep(0.05)
    slow.set()
    await asyncio.gather(*calls)
    assert rows[0] == 8


async def test_a_call_that_comes_later_is_taken_in_while_the_first_one_runs(engine, policies):
    """A small call does not wait for a large one."""
    await engine.load(policies[0])
    ended, most = [], 20_000
    endless = [replace(one, tokens_max=most) for one in requests(2)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Decoder, "end_tokens", frozenset())
        first = asyncio.create_task(engine.generate(endless, 1.0))
        first.add_done_callback(lambda _: ended.append("first"))
        await eventually(lambda: engine.tokens_sampled >= 20)
        await engine.generate(requests(2), 1.0)
        ended.append("second")
        assert ended == ["second"]
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
    async with asyncio.timeout(60):
        await engine.load(policies[1])  # unawaited sequences delay nothing
    assert engine.tokens_sampled < 2 * most


async def test_a_sequence_is_of_the_policy_that_was_there_when_it_was_asked_for(engine, policies):
    await engine.load(policies[0])
    old = await engine.generate(requests(8), 1.0)
    before = asyncio.create_task(engine.generate(requests(8), 1.0))
    await asyncio.sleep(0)
    swap = asyncio.create_task(engine.load(policies[1]))
    await asyncio.sleep(0)
    after = asyncio.create_task(engine.generate(requests(8), 1.0))
    assert await before == old
    await swap
    assert await after == await engine.generate(requests(8), 1.0) != old


async def test_what_breaks_fails_every_call_once_and_the_next_one_works(engine, policies):
    await engine.load(policies[0])
    expected = await engine.generate(requests(4), 1.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Decoder, "step", raising(torch.OutOfMemoryError("out of memory")))
        calls = [engine.generate(requests(4), 1.0) for _ in range(3)]
        results = await asyncio.gather(*calls, return_exceptions=True)
    assert [str(one) for one in results] == ["OutOfMemoryError: out of memory"] * 3
    assert all(isinstance(one, EngineError) for one in results)
    assert await engine.generate(requests(4), 1.0) == expected


async def test_every_temperature_gets_its_turn(engine, policies):
    await engine.load(policies[0])
    alone = [await engine.generate(requests(4), t) for t in (1.0, 4.0, 0.25)]
    together = await asyncio.gather(*(engine.generate(requests(4), t) for t in (1.0, 4.0, 0.25)))
    assert together == alone


async def test_proofs_are_those_of_the_whole_sequence_however_often_they_are_built(
    policies, monkeypatch
):
    long = [replace(one, tokens_max=60) for one in requests(12)]
    made = []
    for steps in (1000, 1, 5, 16):
        monkeypatch.setattr(generation, "STEPS_PER_PROOF", steps)
        engine = TransformersGenerationEngine(model(), toploc())
        await engine.load(policies[0])
        made.append(await engine.generate(long, 1.0))
        engine.close()
    assert max(len(one.tokens) for one in made[0]) > 20
    assert made[1:] == made[:1] * 3


async def test_a_small_budget_takes_longer_and_gives_the_same(policies):
    engine = TransformersGenerationEngine(model(), toploc())
    await engine.load(policies[0])
    expected = await engine.generate(requests(20), 1.0)
    engine.close()
    engine = TransformersGenerationEngine(model(), toploc(), cache_bytes_max=40_000)
    await engine.load(policies[0])
    found = await engine.generate(requests(20), 1.0)
    engine.close()
    assert [one.tokens for one in found] == [one.tokens for one in expected]


def test_the_memory_for_caches_is_a_share_of_what_there_is(monkeypatch):
    whole = cache.cache_bytes("cpu")
    available = psutil.virtual_memory().available
    assert 0.3 * available < whole < 0.7 * available
    used = psutil.Process().memory_info().rss
    monkeypatch.setattr(resource, "getrlimit", lambda _: (used + 10_000_000, -1))
    assert cache.cache_bytes("cpu") < 10_000_000
    monkeypatch.setattr(resource, "getrlimit", lambda _: (used // 2, -1))
    assert cache.cache_bytes("cpu") == 1


async def test_the_first_token_of_a_policy_is_timed_from_its_load(engine, policies):
    assert engine.first_token is None
    for policy in policies:
        await engine.load(policy)
        assert engine.first_token is None
        await asyncio.sleep(0.2)
        await engine.generate(requests(2), 1.0)
        found = engine.first_token
        assert found.version == policy.version
        assert 0.2 <= found.seconds < 10
        await engine.generate(requests(2), 1.0)
        assert engine.first_token == found

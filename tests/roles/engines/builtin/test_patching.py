"""Patches of weights in memory give the same computation as a full load."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from node.storage import encodings
from protocol.core.crypto import digest
from protocol.core.types import Version
from roles.engines.architectures.registry import ARCHITECTURES
from roles.engines.builtin import patching
from roles.engines.builtin.generation import TransformersGenerationEngine
from roles.engines.builtin.patching import PatchedWeights
from roles.engines.files.policy import digest_of, write_policy
from roles.engines.files.safetensors import read_layout
from roles.ports.engines import EngineError, GenerationRequest, Policy
from tests.roles.engines.patches import BITS, OWN, chain, only_header, patched, stepped
from tests.roles.engines.tiny import model, toploc


def engine_of(precision="fp32", architecture="qwen2", head="fp32", **config):
    section = model(**OWN[architecture], **config)
    section = section.model_copy(update={"architecture": architecture, "head": head})
    return TransformersGenerationEngine(section, toploc(precision), device="cpu")


def places_of(engine):
    """Return the tensors in use, by name in the policy's file."""
    return engine._decoder.places()


def bits_of(engine):
    """Return the bits of all tensors in use, by name and position."""
    return {
        (name, number): place.contiguous().view(BITS[place.dtype]).clone()
        for name, places in places_of(engine).items()
        for number, place in enumerate(places)
    }


def assert_same(one, other):
    assert one.keys() == other.keys()
    assert [key for key in one if not torch.equal(one[key], other[key])] == []


REQUESTS = [GenerationRequest((2 + seed, 3, 4), seed, 12) for seed in range(6)]


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize(
    ("dtype", "precision"),
    [(torch.float32, "fp32"), (torch.bfloat16, "fp32"), (torch.bfloat16, "bf16")],
    ids=["f32", "bf16 in float32", "bf16"],
)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
async def test_a_chain_of_patches_gives_what_whole_files_give(
    tmp_path, architecture, dtype, precision, tied
):
    config = {"tie_word_embeddings": tied}
    policies = chain(tmp_path, dtype, architecture, **config)
    made, whole = (engine_of(precision, architecture, **config) for _ in range(2))
    await whole.load(policies[-1])
    await made.load(policies[0])
    only_header(policies[1].path)
    only_header(policies[2].path)
    only_header(policies[3].path)
    assert await made.stage(policies[1])
    await made.load(policies[1])
    assert await made.stage(policies[2])
    assert await made.stage(policies[3])
    await made.load(policies[3])  # two versions at once
    assert_same(bits_of(made), bits_of(whole))
    assert await made.generate(REQUESTS, 1.0) == await whole.generate(REQUESTS, 1.0)
    made.close()
    whole.close()


@pytest.mark.parametrize("architecture", ARCHITECTURES)
async def test_places_are_those_of_all_tensors(tmp_path, architecture):
    """Otherwise a patch would leave some tensors unchanged."""
    policies = chain(tmp_path, architecture=architecture, count=1)
    engine = engine_of(architecture=architecture)
    await engine.load(policies[0])
    tensors, places = load_file(policies[0].path), places_of(engine)
    assert places.keys() == tensors.keys()
    for name, tensor in tensors.items():
        for place in places[name]:
            assert torch.equal(place, tensor.expand(place.shape))
    engine.close()


async def test_staging_changes_nothing_for_what_runs(tmp_path):
    policies = chain(tmp_path, count=3, share=0.05)
    engine, fresh = engine_of(), engine_of()
    await engine.load(policies[0])
    await fresh.load(policies[0])
    before = await fresh.generate(REQUESTS, 1.0)
    running = asyncio.create_task(engine.generate(REQUESTS, 1.0))
    await engine.stage(policies[1])
    loading = asyncio.create_task(engine.load(policies[1]))
    await asyncio.sleep(0)
    late = asyncio.create_task(engine.generate(REQUESTS, 1.0))
    assert await running == before
    await loading
    await fresh.load(replace(policies[1], patch=None))
    assert await late == await fresh.generate(REQUESTS, 1.0) != before
    engine.close()
    fresh.close()


async def refused(tmp_path, policy, **options) -> None:
    """Assert that ``policy`` is not patched and that its file is loaded."""
    engine, whole = engine_of(**options), engine_of(**options)
    await engine.load(Policy(Version(0), *base_of(tmp_path)))
    assert not await engine.stage(policy)
    await engine.load(policy)
    await whole.load(replace(policy, patch=None))
    assert_same(bits_of(engine), bits_of(whole))
    engine.close()
    whole.close()


def base_of(tmp_path):
    path = tmp_path / "0.safetensors"
    return digest_of(load_file(path)), path


async def test_a_patch_that_is_missing_or_another_is_not_applied(tmp_path):
    _, policy = chain(tmp_path, count=2)
    path, data = policy.patch.path, policy.patch.path.read_bytes()
    path.unlink()
    await refused(tmp_path, policy)
    for wrong in (b"", data[:-1], data + b"x", data[:-1] + bytes([data[-1] ^ 1])):
        path.write_bytes(wrong)
        await refused(tmp_path, policy)
    path.write_bytes(data)
    await refused(tmp_path, replace(policy, patch=replace(policy.patch, digest=digest(b"other"))))


async def test_a_patch_that_was_not_decoded_here_is_not_applied(tmp_path):
    """The patch is valid, and makes another policy of the same base."""
    policies = chain(tmp_path, count=2)
    (tmp_path / "other").mkdir()
    base = replace(policies[0], path=tmp_path / "0.safetensors")
    tensors = stepped(load_file(base.path), 99)
    path = tmp_path / "other" / "1.safetensors"
    write_policy(tensors, path)
    encodings.encode(path, base, policies[1].patch.path)
    await refused(tmp_path, policies[1])


async def test_a_patch_of_another_policy_is_not_applied(tmp_path):
    policies = chain(tmp_path, count=3)
    await refused(tmp_path, policies[2])


async def test_weights_that_are_less_exact_than_their_file_are_not_patched(tmp_path):
    """The bits of the base are lost."""
    _, policy = chain(tmp_path, torch.float32, count=2)
    await refused(tmp_path, policy, precision="bf16")


async def test_a_dense_patch_is_not_applied(tmp_path):
    _, policy = chain(tmp_path, count=2, share=1.2 * patching.CHANGED_SHARE_MAX)
    await refused(tmp_path, policy)


async def test_what_is_staged_is_bounded_over_all_patches(tmp_path):
    policies = chain(tmp_path, count=4, share=0.4 * patching.CHANGED_SHARE_MAX)
    engine = engine_of()
    await engine.load(policies[0])
    assert [await engine.stage(policy) for policy in policies[1:]] == [True, True, False]
    await engine.load(policies[2])
    assert await engine.stage(policies[3])
    engine.close()


async def test_a_file_in_another_order_is_no_base(tmp_path):
    """Patch blocks follow the order of the file; the same policy in another order differs."""
    policies = chain(tmp_path, count=2)
    tensors = load_file(policies[0].path)
    keys, values = (f"model.layers.0.self_attn.{part}_proj.weight" for part in "kv")
    swapped = {keys: values, values: keys}  # equal sizes: each block could belong to either
    other = tmp_path / "other.safetensors"
    order = [place.name for place in read_layout(policies[0].path).places]
    _write_in_order({name: tensors[name] for name in (swapped.get(n, n) for n in order)}, other)
    engine, whole = engine_of(), engine_of()
    await engine.load(Policy(Version(0), policies[0].digest, other))
    assert read_layout(other).header != read_layout(policies[0].path).header
    await engine.stage(policies[1])
    await engine.load(policies[1])
    await whole.load(replace(policies[1], patch=None))
    assert_same(bits_of(engine), bits_of(whole))
    engine.close()
    whole.close()


def _write_in_order(tensors, path):
    from tests.worlds.tensor_files import file_of  # noqa: PLC0415 - beside its only use

    path.write_bytes(file_of({name: tensor.numpy() for name, tensor in tensors.items()}))


async def test_another_branch_takes_the_place_of_what_is_staged(tmp_path):
    policies = chain(tmp_path, count=3, share=0.01)
    tensors = stepped(load_file(policies[0].path), 77, share=0.01)
    other = patched(policies[0], tensors, 9)
    engine, whole = engine_of(), engine_of()
    await engine.load(policies[0])
    for policy in (policies[1], policies[2], other):
        assert await engine.stage(policy)
    await engine.load(other)
    await whole.load(replace(other, patch=None))
    assert_same(bits_of(engine), bits_of(whole))
    engine.close()
    whole.close()


async def test_what_breaks_while_patches_are_written_leaves_nothing_loaded(tmp_path, monkeypatch):
    policies = chain(tmp_path, count=2)
    engine, whole = engine_of(), engine_of()
    await engine.load(policies[0])
    await engine.stage(policies[1])
    write, written = patching._write, []

    def break_half_way(place, changes):
        if len(written) == 3:
            raise MemoryError
        written.append(write(place, changes))

    with monkeypatch.context() as patch:
        patch.setattr(patching, "_write", break_half_way)
        with pytest.raises(EngineError, match="MemoryError"):
            await engine.load(policies[1])
    with pytest.raises(EngineError, match="no policy"):
        await engine.generate(REQUESTS, 1.0)
    await engine.load(policies[1])
    await whole.load(replace(policies[1], patch=None))
    assert_same(bits_of(engine), bits_of(whole))
    engine.close()
    whole.close()


@pytest.mark.parametrize("held", [torch.float32, torch.bfloat16])
def test_bits_that_are_no_numbers_survive(tmp_path, held):
    """NaN has many bit patterns; a conversion would merge them."""
    words = np.arange(1 << 16, dtype="<u2")
    old = torch.from_numpy(words.view("<i2")).view(torch.bfloat16)
    new = old.clone()
    odd = torch.arange(3, 1 << 16, 1021)
    new.view(torch.int16)[odd] += 1
    path = tmp_path / "0.safetensors"
    base = Policy(Version(0), write_policy({"w": old}, path), path)
    policy = patched(base, {"w": new}, 1)
    place = old.clone().to(held)
    weights = PatchedWeights(base.digest, read_layout(path), {"w": [place]})
    weights.stage(policy)
    weights.swap(policy.digest)
    expected = new.to(held)
    assert torch.equal(place.view(BITS[held]), expected.view(BITS[held]))

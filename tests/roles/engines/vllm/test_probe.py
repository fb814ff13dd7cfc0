"""Probe with the built-in engine in vLLM's place: accepted and detected weights.

Weights are those of the tiny model and one small step away, as an optimizer's with a rate of 1e-5.
"""

import pytest
import torch

from roles.engines.architectures.configuration import configuration
from roles.engines.architectures.model import build_model, tensors_of
from roles.engines.builtin.generation import TransformersGenerationEngine
from roles.engines.files.policy import write_policy
from roles.engines.vllm.probe import COLUMNS, TEMPERATURE, Probe
from roles.ports.engines import Policy
from tests.roles.engines.tiny import model, toploc

STEP = 1e-5
HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"


def weights(section):
    torch.manual_seed(4)
    config = configuration(section.architecture, section.config)
    return tensors_of(build_model(config, torch.float32, "cpu"))


def stepped(tensors, *, only=lambda name: True):
    """Return weights in which those selected by ``only`` are one step further."""
    return {
        name: tensor + STEP * torch.randn(tensor.shape).sign() if only(name) else tensor
        for name, tensor in tensors.items()
    }


async def made(section, tensors, path, precision="fp32", probe=None):
    """Return an engine's answers, with these weights, to the probe's requests."""
    engine = TransformersGenerationEngine(section, toploc(precision))
    await engine.load(Policy(0, write_policy(tensors, path), path))
    probe = probe or Probe(section, toploc(precision), engine._config)
    generations = await engine.generate(probe.requests, TEMPERATURE)
    engine.close()
    return probe, generations


def unembedded(tensors, probe, dtype=torch.float32):
    return tensors.get(HEAD, tensors[EMBEDDING])[:, probe.columns].T.to(dtype)


@pytest.mark.parametrize("section", [model(), model(tie_word_embeddings=True)])
async def test_the_policy_itself_passes(section, tmp_path):
    tensors = weights(section)
    probe, generations = await made(section, tensors, tmp_path / "policy")
    assert probe.fault(tensors, generations) is None
    assert probe.head_fault(tensors, unembedded(tensors, probe)) is None


@pytest.mark.parametrize("stale", ["embed_tokens", "layers.0", "layers.1", "model.norm", "lm_head"])
async def test_any_part_that_is_one_step_old_is_found(stale, tmp_path):
    old = weights(model())
    new = stepped(old, only=lambda name: stale in name)
    probe, generations = await made(model(), old, tmp_path / "policy")
    head = probe.head_fault(new, unembedded(old, probe))
    assert (head is not None) == (stale == "lm_head")
    assert head or probe.fault(new, generations)


async def test_a_tied_output_layer_that_is_stale_is_found_in_bf16_after_one_step(tmp_path):
    """A step changes one bf16 weight in a hundred, each by one unit in the last place."""
    section = model("bf16", tie_word_embeddings=True)
    old = {name: tensor.bfloat16() for name, tensor in weights(section).items()}
    new = dict(old)
    changed = old[EMBEDDING].view(torch.int16) + (torch.rand(old[EMBEDDING].shape) < 0.01).short()
    new[EMBEDDING] = changed.view(torch.bfloat16)
    probe = Probe(section, toploc("bf16"), configuration(section.architecture, section.config))
    fault = probe.head_fault(new, unembedded(old, probe, torch.bfloat16))
    assert fault is not None
    assert f"of {COLUMNS * 32} weights" in fault
    assert probe.head_fault(new, unembedded(new, probe, torch.bfloat16)) is None


async def test_another_precision_and_another_temperature_are_found(tmp_path):
    tensors = weights(model())
    probe, _ = await made(model(), tensors, tmp_path / "policy")
    coarse = {name: tensor.bfloat16().float() for name, tensor in tensors.items()}
    _, generations = await made(model(), coarse, tmp_path / "coarse", probe=probe)
    assert probe.fault(tensors, generations)
    engine = TransformersGenerationEngine(model(), toploc())
    path = tmp_path / "policy"
    await engine.load(Policy(0, write_policy(tensors, path), path))
    assert "logprob" in probe.fault(tensors, await engine.generate(probe.requests, 1.1))
    engine.close()


async def test_one_sequence_outside_is_no_fault_and_most_of_them_are(tmp_path):
    tensors = weights(model())
    probe, good = await made(model(), tensors, tmp_path / "policy")
    _, bad = await made(model(), stepped(tensors), tmp_path / "other", probe=probe)
    assert probe.fault(tensors, [*bad[:2], *good[2:]]) is None
    assert probe.fault(tensors, [*bad[:3], *good[3:]])

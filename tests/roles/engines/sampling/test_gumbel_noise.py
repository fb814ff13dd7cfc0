import numpy as np
import pytest
import torch

from protocol.toploc.sampling import SEED_MAX, gumbel_noise, noise_bits, noise_keys
from roles.engines.builtin.generation import TransformersGenerationEngine
from roles.engines.builtin.verification import TransformersVerificationEngine
from roles.engines.sampling import gumbel_noise as noise
from roles.engines.sampling.gumbel_noise import Draws, NoiseSource
from tests.roles.engines.tiny import model, toploc

VOCABULARY = 151_936
SEEDS = np.array([0, 1, SEED_MAX, 0x0123_4567_89AB_CDEF, 7], dtype=np.uint64)
POSITIONS = np.array([0, 2**32 - 1, 5, 41, 262_143])

bits_of, noise_of = Draws.bits, noise.gumbel

DEVICES = [
    "cpu",
    pytest.param(
        "cuda",
        marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    ),
]


@pytest.mark.parametrize("device", DEVICES)
def test_a_device_draws_the_integers_of_the_reference(device):
    draws = NoiseSource(VOCABULARY, device).at(SEEDS, POSITIONS)
    expected = noise_bits(noise_keys(SEEDS, POSITIONS), VOCABULARY)
    for block in (slice(None), slice(0, 1), slice(2048, 4096), slice(151_500, 160_000)):
        drawn = draws.bits(block).cpu().numpy().view(np.uint32)
        assert np.array_equal(drawn, expected[:, block])


@pytest.mark.parametrize("device", DEVICES)
def test_a_device_draws_the_noise_of_the_reference(device):
    drawn = NoiseSource(VOCABULARY, device).draw(SEEDS, POSITIONS)
    assert (drawn.device.type, drawn.dtype) == (device, torch.float32)
    expected = gumbel_noise(SEEDS, POSITIONS, VOCABULARY)
    np.testing.assert_allclose(drawn.cpu().numpy(), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("place", "name", "wrong"),
    [
        (Draws, "bits", lambda *given: bits_of(*given) ^ 1),
        (noise, "gumbel", lambda bits: noise_of(bits) + 0.01),
        (noise, "gumbel", lambda bits: noise_of(bits) * torch.nan),
    ],
)
@pytest.mark.parametrize("engine", [TransformersGenerationEngine, TransformersVerificationEngine])
def test_an_engine_whose_device_draws_other_noise_refuses_to_work(
    engine, place, name, wrong, monkeypatch
):
    monkeypatch.setattr(place, name, wrong)
    with pytest.raises(RuntimeError, match="cpu draws other sampling noise"):
        engine(model(), toploc())

"""Block-wise sampling against the plain form over the whole vocabulary."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from roles.engines.sampling import gumbel_noise as noise
from roles.engines.sampling import sampling
from roles.engines.sampling.gumbel_noise import NOISE_ERROR_MAX, Draws, NoiseSource
from roles.engines.sampling.sampling import Sampled, sample_blocks, sample_whole

VOCABULARIES = [1, 2, 15, 16, 17, 100, 4096]
SOURCES = {size: NoiseSource(size, "cpu") for size in VOCABULARIES}


class CoarseDraws(Draws):
    """Noise of four values only, so that many scores are equal."""

    def bits(self, block: slice) -> torch.Tensor:
        return super().bits(block) & 0x3000_0000


def plain(scaled: torch.Tensor, draws: Draws | None, claimed: torch.Tensor | None) -> Sampled:
    """Return the result by the definition."""
    scores = scaled if draws is None else scaled + draws.noise()
    tokens = scores.argmax(-1)
    rows, own = torch.arange(len(scaled)), tokens if claimed is None else claimed
    logprobs = scaled.double()[rows, own] - scaled.double().logsumexp(-1)
    return Sampled(tokens, logprobs.float(), scores.amax(-1) - scores[rows, own])


def in_blocks(
    scaled: torch.Tensor, draws: Draws | None, claimed: torch.Tensor | None = None
) -> Sampled:
    return sample_blocks(lambda block: scaled[:, block].clone(), *scaled.shape, draws, claimed)


def same(sampled: Sampled, expected: Sampled, logit_max: float) -> None:
    assert torch.equal(sampled.tokens, expected.tokens)
    torch.testing.assert_close(sampled.gaps, expected.gaps, atol=0, rtol=0, equal_nan=True)
    # The rounding of a float32 sum is that of the largest logits. Four thousand equal tokens have a
    # log-probability magnitude above 8, which float32 resolves to a millionth.
    tolerance = 4e-6 + 2e-7 * logit_max
    torch.testing.assert_close(
        sampled.logprobs, expected.logprobs, atol=tolerance, rtol=0, equal_nan=True
    )


@st.composite
def cases(draw):
    vocabulary, rows = draw(st.sampled_from(VOCABULARIES)), draw(st.integers(1, 9))
    chance = np.random.default_rng(draw(st.integers(0, 2**32)))
    logits = chance.normal(size=(rows, vocabulary))
    if draw(st.booleans()):
        logits = logits.round()
    logits = logits * draw(st.sampled_from([0, 1e-3, 1, 5, 1e3, 1e6, 1e30]))
    if draw(st.booleans()):
        logits[chance.random(size=logits.shape) < draw(st.sampled_from([0.1, 0.9, 1]))] = -np.inf
    seeds = chance.integers(0, 2**64, size=rows, dtype=np.uint64)
    draws = SOURCES[vocabulary].at(seeds, chance.integers(0, 2**32, size=rows))
    noise = draw(st.sampled_from([draws, CoarseDraws(draws.tokens, draws.keys), None]))
    claimed = torch.from_numpy(chance.integers(0, vocabulary, size=rows))
    scaled = torch.from_numpy(logits.astype(np.float32)) / draw(st.sampled_from([0.3, 1.0]))
    return scaled, noise, draw(st.sampled_from([claimed, None])), draw(st.sampled_from([16, 4096]))


@given(cases())
def test_blocks_give_exactly_what_the_plain_form_gives(case):
    scaled, draws, claimed, block_tokens = case
    expected, largest = plain(scaled, draws, claimed), scaled[scaled.isfinite()].abs()
    logit_max = float(largest.max()) if len(largest) else 0.0
    same(sample_whole(scaled, draws, claimed), expected, logit_max)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sampling, "BLOCK_TOKENS", block_tokens)
        same(in_blocks(scaled, draws, claimed), expected, logit_max)


@pytest.mark.parametrize("strange", [torch.nan, torch.inf])
@pytest.mark.parametrize("place", [0, 50, 99])
def test_a_value_that_is_not_finite_is_the_best_and_stays_it(strange, place, monkeypatch):
    monkeypatch.setattr(sampling, "BLOCK_TOKENS", 16)
    scaled = torch.zeros(2, 100)
    scaled[0, place] = strange
    draws, claimed = SOURCES[100].at(np.array([1, 2], dtype=np.uint64), 3), torch.tensor([7, 7])
    sampled = in_blocks(scaled, draws, claimed)
    same(sampled, plain(scaled, draws, claimed), 0.0)
    assert sampled.tokens[0] == place


class TableDraws(Draws):
    """Draws whose ``keys[n, vocabulary]`` are the integers themselves."""

    def bits(self, block: slice) -> torch.Tensor:
        return self.keys[:, block].clone()


def test_logarithms_may_be_off_by_what_is_allowed(monkeypatch):
    """The bound of a power of two is close to its noise; here noise exceeds it."""
    exact = noise.gumbel

    def off(bits: torch.Tensor) -> torch.Tensor:
        return exact(bits) + 0.9 * NOISE_ERROR_MAX * (2 * (bits % 2 == 0).float() - 1)

    monkeypatch.setattr(sampling, "BLOCK_TOKENS", 16)
    for module in (noise, sampling):
        monkeypatch.setattr(module, "gumbel", off)
    bits = torch.tensor([[65_537] * 16 + [65_536] * 16], dtype=torch.int32)
    scaled = torch.zeros(1, 32)
    # The first token lies between the true and the computed values of the later ones.
    scaled[0, 0] = math.log(65_537 / 65_536) + 1.5 * NOISE_ERROR_MAX
    draws = TableDraws(torch.arange(32, dtype=torch.int32), bits)
    sampled = in_blocks(scaled, draws)
    same(sampled, plain(scaled, draws, None), 0.0)
    assert sampled.tokens.tolist() == [16]


def test_every_exponent_is_bounded():
    """The bound never excludes a second, far better block."""
    exponents = [0, 1, *(2**power + change for power in range(1, 32) for change in (-1, 0, 1))]
    integers = np.array([*exponents, 2**32 - 1, 2**32 - 129], dtype=np.uint32)
    bits = torch.from_numpy(np.repeat(integers[:, None], 2, axis=1).view(np.int32))
    scaled = torch.tensor([[0.0, 1e-5]]).expand(len(bits), 2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sampling, "BLOCK_TOKENS", 1)
        sampled = in_blocks(scaled, TableDraws(torch.arange(2, dtype=torch.int32), bits))
    assert sampled.tokens.tolist() == [1] * len(bits)


@pytest.mark.parametrize("spread", [0.0, 1.0, 3.0])
def test_logarithms_are_taken_of_few_blocks(spread, monkeypatch):
    """The saving holds for close and for distant logits."""
    taken = []
    monkeypatch.setattr(
        sampling, "gumbel", lambda bits: (taken.append(bits.numel()), noise_of(bits))[1]
    )
    noise_of, source = noise.gumbel, NoiseSource(1 << 17, "cpu")
    draws = source.at(np.arange(16, dtype=np.uint64), 0)
    chance = torch.Generator().manual_seed(1)
    in_blocks(spread * torch.randn(16, 1 << 17, generator=chance), draws)
    assert sum(taken) < 0.2 * 16 * (1 << 17)


def test_a_row_does_not_depend_on_its_company():
    scaled = torch.randn(8, 10_000, generator=torch.Generator().manual_seed(1))
    source, seeds = NoiseSource(10_000, "cpu"), np.arange(8, dtype=np.uint64)
    together = in_blocks(scaled, source.at(seeds, 5))
    for row in range(8):
        alone = in_blocks(scaled[row : row + 1], source.at(seeds[row : row + 1], 5))
        assert torch.equal(alone.tokens[0], together.tokens[row])
        assert torch.equal(alone.logprobs[0], together.logprobs[row])

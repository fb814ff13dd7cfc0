from pathlib import Path

import pytest

from protocol.core.rng import Rng
from protocol.rollout.statistics import Recomputed, beyond, measured
from protocol.run.toml import load_recipe
from protocol.toploc import ChunkResult
from simulations.ports.rounding import CHUNK_TOKENS, RecordedChunk, Rounding, recorded
from simulations.scenario.scenario import load_scenario

RECIPE = Path(__file__).parents[3] / "configs" / "runs" / "intellect2.toml"
ONE = RecordedChunk(tuple(i / 1000 for i in range(32)), (0.0,) * 31 + (0.5,), ChunkResult(1, 2, 3))
OTHER = RecordedChunk((0.0,) * 32, (0.0,) * 32, ChunkResult(0, 0.0, 0.0))


def test_what_is_recomputed_is_off_by_the_recorded_errors():
    claimed = [-1.0] * 40
    own = Rounding([ONE], Rng(b"")).recomputed(claimed)
    assert own.chunks == [ONE.proof] * 2
    assert [a - b for a, b in zip(claimed, own.logprobs, strict=True)] == pytest.approx(
        [*ONE.errors, *ONE.errors[:8]]
    )
    assert list(own.gaps) == [*ONE.gaps, *ONE.gaps[:8]]


def test_each_chunk_is_drawn_anew():
    rounding = Rounding([ONE, OTHER], Rng(b"draws"))
    drawn = [rounding.recomputed([-1.0] * CHUNK_TOKENS).chunks[0] for _ in range(200)]
    assert 60 < drawn.count(ONE.proof) < 140


def test_the_recording_is_of_whole_chunks_and_of_honest_engines():
    chunks = recorded("rounding-bf16")
    assert len(chunks) >= 256
    for chunk in chunks:
        assert len(chunk.errors) == len(chunk.gaps) == CHUNK_TOKENS
        assert min(chunk.gaps) >= 0
    rules = load_recipe(RECIPE.read_text()).toploc
    errors = [abs(error) for chunk in chunks for error in chunk.errors]
    assert 0 < max(errors) < rules.logprob_error_max
    flat = Recomputed(
        [chunk.proof for chunk in chunks],
        [-error for chunk in chunks for error in chunk.errors],
        [gap for chunk in chunks for gap in chunk.gaps],
    )
    assert beyond(rules, measured(rules, [0.0] * len(errors), flat).sums, 1e-6) is None


def test_the_scenario_judges_by_the_recipe_of_intellect2():
    own = load_scenario("rounding").recipe().toploc
    assert own == load_recipe(RECIPE.read_text()).toploc

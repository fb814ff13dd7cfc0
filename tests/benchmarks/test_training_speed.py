"""Benchmarks of a trainer's speed, on a model of a tenth of a million weights."""

import json
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks" / "training"


@pytest.fixture
def printed(monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(FOLDER))

    def run(name, *options):
        # Another benchmark has the name "gpu", too.
        spec = spec_from_file_location(f"training_{name}", FOLDER / f"{name}.py")
        script = module_from_spec(spec)
        spec.loader.exec_module(script)
        monkeypatch.setattr(sys, "argv", [name, *options])
        script.main()
        return json.loads(capsys.readouterr().out)

    return run


@pytest.mark.slow
def test_a_plain_loop_learns_alike_and_the_shares_are_whole(printed):
    results = printed("throughput", "--dry", "--rounds", "2", "--spread", "--json")
    for dtype, error in (("fp32", 1e-6), ("bf16", 1e-2)):
        losses, found = results[dtype]["losses"], results[dtype]
        assert len(losses["ours"]) == 3
        for ours, plain in zip(losses["ours"], losses["plain"], strict=True):
            assert ours == pytest.approx(plain, abs=error)
        assert found["ratio"] > 0
        assert sum(found["shares"].values()) == pytest.approx(1)
        assert {"head", "attention", "optimiser", "layers, products"} <= set(found["shares"])
    assert results["fp32"]["losses"]["ours"][-1] < results["fp32"]["losses"]["ours"][0]


@pytest.mark.slow
def test_every_part_of_the_gpu_script_runs_without_one(printed):
    results = printed("gpu", "--dry")["dry"]
    assert {"step", "head", "attention", "fsdp", "offload"} < set(results)
    assert results["step"]["kept"]["mfu"] > 0
    assert results["attention"]["copied keys"]["logprob_difference_max"] == 0
    assert results["fsdp"]["fsdp_seconds"] > 0
    # 6 FLOP a weight and token, and 6 a layer, head value and pair of tokens in a causal half.
    tokens, pairs = 8 * 15, 8 * 15 * 15
    assert results["flop_per_step"] == 6 * results["weights"] * tokens + 6 * 2 * 64 * pairs

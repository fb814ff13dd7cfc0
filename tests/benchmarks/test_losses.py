"""Loss benchmark: a library with another result is seen; one that is missing is named."""

from dataclasses import replace

import pytest

from benchmarks.training import losses


def test_a_library_that_cannot_be_imported_is_named(monkeypatch):
    for name in ("trl", "verl"):
        monkeypatch.setitem(losses.sys.modules, name, None)
    found, missing = losses.libraries(None)
    assert found == {}
    assert set(missing) == {"TRL", "verl", "prime-rl"}
    assert "no registry" in missing["prime-rl"]


@pytest.mark.parametrize("change", [0.0, 0.25])
def test_differences_are_those_of_results(change):
    def library(made, loss):
        own = losses.own_result(made, loss)
        return replace(own, loss=own.loss + change, gradient=own.gradient - 2 * change)

    found = losses.differences(losses.tensors(), {"other": library})
    assert set(found) == set(losses.CASES)
    for case in found.values():
        assert case["other"]["loss"] == pytest.approx(change, abs=1e-9)
        assert case["other"]["gradient"] == pytest.approx(2 * change, abs=1e-6)


def test_every_bound_acts_on_a_token_of_the_tensors():
    made = losses.tensors()
    ratios = (made.logprobs - made.behaviour).exp()[made.mask]
    assert ratios.min() < 0.8
    assert ratios.max() > 4
    assert ((ratios > 1.28) & (ratios < 4)).any()
    assert (made.old - made.behaviour).exp()[made.mask].max() > 2

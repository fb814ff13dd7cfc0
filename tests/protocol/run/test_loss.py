"""Combinations of loss settings that a recipe may have."""

from pathlib import Path

import pytest

from protocol.run.loss import LossSection
from protocol.run.toml import ManifestError, load_recipe

RECIPE = Path(__file__).parents[3] / "configs" / "runs" / "testnet.toml"

OWN = """[grpo.loss]
kind = "grpo"
epsilon = 0.2
delta = 4.0
"""


def loaded(text: str) -> LossSection:
    """Return the loss of the testnet's recipe with another table."""
    recipe = RECIPE.read_text()
    assert recipe.count(OWN) == 1
    return load_recipe(recipe.replace(OWN, f"[grpo.loss]\n{text}\n")).grpo.loss


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ('kind = "ppo"\nepsilon = 0.2', "grpo.loss.kind: Input should be 'grpo', 'gspo', "),
        ('kind = "grpo"\ndelta = 4.0', "grpo.loss.epsilon: Field required"),
        ('kind = "grpo"\nepsilon = 0.2', "grpo.loss: grpo needs delta"),
        ('kind = "dppo_tv"\nepsilon = 0.2', "grpo.loss: dppo_tv needs delta"),
        ('kind = "cispo"\nepsilon = 0.2\ndelta = 4.0', "grpo.loss: cispo bounds the ratio by"),
        ('kind = "grpo"\nepsilon = 0.2\ndelta = 1.2', "grpo.loss: delta must exceed 1 + epsilon"),
        (
            'kind = "grpo"\nepsilon = 0.2\nepsilon_high = 3.0\ndelta = 4.0',
            "grpo.loss: delta must exceed 1 + epsilon",
        ),
        ('kind = "gspo"\nepsilon = 0.2\ndelta = 4.0', "grpo.loss: gspo needs aggregation"),
        (
            'kind = "dppo_kl"\nepsilon = 0.2\ndelta = 4.0\nimportance_cap = 2.0',
            "grpo.loss: dppo_kl compares with the generating policy",
        ),
        (
            'kind = "grpo"\nepsilon = 0.2\ndelta = 4.0\ndivergence = "tv"',
            "unknown key 'grpo.loss.divergence'",
        ),
    ],
)
def test_an_impossible_combination_is_refused_in_one_line(text, error):
    with pytest.raises(ManifestError) as refused:
        loaded(text)
    assert str(refused.value).startswith(error)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "text",
    [
        'kind = "cispo"\nepsilon = 1.0\nepsilon_high = 4.0\nimportance_cap = 2.0',
        'kind = "gspo"\nepsilon = 3e-4\nepsilon_high = 4e-4\ndelta = 4.0\naggregation = "sequence"',
        'kind = "dppo_tv"\nepsilon = 0.2\ndelta = 1.1',
        'kind = "grpo"\nepsilon = 0.2\nepsilon_high = 0.28\ndelta = 1.29',
    ],
)
def test_a_possible_one_is_accepted(text):
    assert loaded(text).kind in text


def test_an_optimiser_without_a_bound_on_movement_is_refused():
    with pytest.raises(ManifestError, match=r"^grpo.optimiser: nodes have no bound .* by muon"):
        load_recipe(RECIPE.read_text().replace("[grpo]\n", '[grpo]\noptimiser = "muon"\n'))
    load_recipe(RECIPE.read_text().replace("[grpo]\n", '[grpo]\noptimiser = "adamw"\n'))


def test_the_region_above_is_that_below_unless_it_is_stated():
    assert loaded('kind = "cispo"\nepsilon = 0.3').upper_epsilon == 0.3
    assert loaded('kind = "cispo"\nepsilon = 0.3\nepsilon_high = 2.0').upper_epsilon == 2.0

import tomllib

import pytest

from node.founding.expected import Point, expected_curve, outcome
from node.founding.recipes import expected_file, read_recipe, recipe_names, recipe_path

CURVE = (Point(10, 0.4), Point(20, 0.6))


def test_every_recipe_states_its_curve_or_that_it_has_not_been_run():
    stated = tomllib.loads(expected_file().read_text())
    assert sorted(stated) == recipe_names()
    for name in recipe_names():
        environment = read_recipe(name).environment.name
        assert bool(stated[name]) == bool(expected_curve(name, environment)), environment
    assert [point.version for point in expected_curve("testnet", "sorting")] == [20, 40, 60]


def test_somebody_s_own_recipe_states_nothing():
    assert expected_curve("mine.toml", "arithmetic") == ()
    assert expected_curve("testnet", "mine") == ()


def flat(reward, versions):
    return [(version, reward) for version in range(1, versions + 1)]


@pytest.mark.parametrize(
    ("rewards", "told"),
    [
        ([], None),
        (flat(0.9, 9), None),
        (flat(0.5, 10), (10, 0.5, True)),
        (flat(0.5, 19), (10, 0.5, True)),
        (flat(0.5, 20), (20, 0.5, False)),
        (flat(0.1, 15) + [(16 + n, 0.7) for n in range(9)], (20, 0.7, True)),
        ([(30, 0.9)], None),
    ],
)
def test_the_last_point_that_was_reached_is_compared(rewards, told):
    found = outcome(CURVE, rewards)
    seen = found and (found.point.version, pytest.approx(found.reward), found.met)
    assert seen == told


def test_a_byte_order_mark_is_no_part_of_a_recipe(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_bytes(b"\xef\xbb\xbf" + recipe_path("testnet").read_bytes())
    assert read_recipe(str(path)) == read_recipe("testnet")

import json

import pytest

from node.cli.commands.recipes import _short
from node.cli.main import main
from node.founding.recipe_list import first_sentence
from node.founding.recipes import read_recipe, read_recipe_text, recipe_names
from protocol.run.toml import load_recipe


def run(capsys, *arguments):
    assert main(["run", *arguments]) == 0
    return capsys.readouterr().out


def test_every_recipe_is_listed_on_one_line_with_its_purpose(capsys):
    lines = run(capsys, "recipes").splitlines()
    assert max(map(len, lines)) <= 100
    for name in recipe_names():
        recipe = read_recipe(name)
        facts, purpose = (line for line in lines if line.split(" ")[0] == name)
        assert recipe.model.dtype in facts and recipe.environment.name in facts
        assert facts.count("GB") == 3
        assert len(purpose.split()) > 5


def test_the_list_is_printed_as_json(capsys):
    found = json.loads(run(capsys, "recipes", "--json"))
    assert [one["recipe"] for one in found] == recipe_names()
    by_name = {one["recipe"]: one for one in found}
    assert by_name["smollm2-135m"]["weights"] == 134_515_008
    assert by_name["small-text"]["task"] == "math/rows"
    for one in found:
        assert one["purpose"].endswith(".") and len(one["purpose"]) > 20
        assert one["trainer_bytes"] > one["worker_bytes"] > 0 or one["recipe"] == "qwen3-0.6b-math"


@pytest.mark.parametrize(
    ("comment", "sentence"),
    [
        (
            "# One of 1.2 million\n# weights (a. b), small. Two.",
            "One of 1.2 million weights, small.",
        ),
        ("# Without an end", "Without an end"),
        ("", ""),
    ],
)
def test_a_purpose_is_the_first_sentence(comment, sentence):
    assert first_sentence(comment) == sentence


def test_sizes_are_short():
    assert [_short(n) for n in (None, 12, 566_400, 134_515_008, 32_763_876_352)] == [
        "", "12", "566K", "135M", "32.8B"]  # fmt: skip


@pytest.mark.parametrize("name", recipe_names())
def test_a_recipe_is_printed_as_it_is(name, capsys):
    assert run(capsys, "recipe", name) == read_recipe_text(name)[1]


def test_an_explained_recipe_founds_what_the_recipe_does(tmp_path, capsys):
    mine = tmp_path / "my.toml"
    mine.write_text(run(capsys, "recipe", "small-text", "--explain"))
    assert read_recipe(str(mine)) == read_recipe("small-text")
    assert run(capsys, "recipe", str(mine), "--explain") == mine.read_text()
    text = mine.read_text()
    mine.write_text(text.replace("group_size = 8 ", "group_size = 6 "))
    assert load_recipe(run(capsys, "recipe", str(mine))).sampling.group_size == 6


def test_every_key_is_printed_as_json(capsys):
    keys = json.loads(run(capsys, "recipe", "tiny-qwen3-bpe", "--json"))
    values = read_recipe("tiny-qwen3-bpe").model_dump(mode="json")
    by_name = {key["key"]: key for key in keys}
    assert len(by_name) == len(keys)

    def covered(table, path=""):
        for name, value in table.items():
            if path + name not in by_name:
                covered(value, f"{path}{name}.")
            else:
                assert by_name[path + name]["value"] == value

    covered(values)
    assert by_name["evaluation.every_versions"]["value"] is None
    rate = by_name["grpo.learning_rate"]
    assert rate["value"] == 2e-4 and rate["required"] and rate["type"] == "number"
    assert rate["elsewhere"]["TRL"] == "learning_rate"
    assert set(rate) == {
        "key", "meaning", "type", "constraints", "required", "default", "value", "elsewhere"
    }  # fmt: skip


@pytest.mark.parametrize("options", [[], ["--explain"], ["--json"]])
def test_an_unknown_name_is_one_line_with_those_that_there_are(options, capsys):
    assert main(["run", "recipe", "llama", *options]) == 78
    said = capsys.readouterr()
    assert said.out == ""
    (line,) = said.err.splitlines()
    assert line.startswith("prime-node: error: no recipe 'llama'")
    assert all(name in line for name in recipe_names())


def test_a_recipe_that_does_not_load_is_not_explained(tmp_path, capsys):
    wrong = tmp_path / "wrong.toml"
    wrong.write_text(read_recipe_text("testnet")[1].replace("group_size", "group_sizes"))
    assert main(["run", "recipe", str(wrong), "--explain"]) == 78
    said = capsys.readouterr()
    assert (said.out, len(said.err.splitlines())) == ("", 1)
    assert f"{wrong}: unknown key 'sampling.group_sizes'" in said.err

"""Meanings of all recipe keys, and equality of the explained recipe with the recipe."""

import difflib
import re
from typing import get_args

import pytest
from pydantic import BaseModel

from node.founding.equivalents import EQUIVALENTS, PRIME_RL, TRL, VERL
from node.founding.explained_recipe import NOTE, WIDTH, explained_toml
from node.founding.recipe_keys import attribute_docstrings, recipe_table
from node.founding.recipes import read_recipe, read_recipe_text, recipe_names
from protocol.run.recipe import ExampleSection, Recipe
from protocol.run.sections import HonestValue, OuterSection, RecipeModel
from protocol.run.toml import load_recipe

UNITS = ("bits", "bytes", "epochs", "kib", "passes", "rollouts", "seconds", "steps", "tokens")
"""Unit words in keys, which the meaning must name too."""

KEYS = {key.name: key for key in recipe_table().every_key()}

every_recipe = pytest.mark.parametrize("name", recipe_names())


def sections(section: type[RecipeModel]) -> set[type[RecipeModel]]:
    """Return a section and all sections nested in its fields."""
    found, waiting = set(), [section]
    while waiting:
        kind = waiting.pop()
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            found.add(kind)
            waiting += [field.annotation for field in kind.model_fields.values()]
        waiting += get_args(kind)
    return found


def test_every_field_has_a_meaning_of_its_own():
    kinds = sections(Recipe)
    assert len(kinds) > 15
    for kind in kinds:
        meanings = attribute_docstrings(kind)
        plain = {
            name
            for name, field in kind.model_fields.items()
            if not any(issubclass(one, RecipeModel) for one in sections(field.annotation))
        }
        assert kind.__doc__.strip().endswith(".")
        assert plain <= set(meanings), kind
        assert len(set(meanings.values())) == len(meanings), kind
    for key in KEYS.values():
        assert len(key.meaning) > 10 and key.meaning[0].isupper() and key.meaning.endswith("."), (
            key.name
        )
        assert not key.meaning.startswith(("What", "Who", "How", "Which")), key.name


def test_no_field_of_a_section_is_missing():
    tables = sections(Recipe) - {ExampleSection, HonestValue}  # values of keys
    fields = sum(len(table.model_fields) for table in tables)
    assert len(KEYS) == fields - (len(tables) - 1), "one field holds each table but the root"


def test_a_unit_in_a_key_is_in_its_meaning():
    silent = [
        f"{key.name}: {unit}"
        for key in KEYS.values()
        for unit in UNITS
        if unit in key.path[-1].split("_") and unit not in key.meaning.lower()
    ]
    assert silent == []


@pytest.mark.parametrize(
    ("name", "constraints"),
    [
        ("name", "1 to 64 characters, matching ^[a-z0-9][a-z0-9._-]*$"),
        ("model.dtype", '"fp32" or "bf16"'),
        ("model.rounding", '"dither" or "nearest"'),
        ("environment.examples", "up to 8 items, each with question, answer"),
        ("sampling.group_size", "1 to 2^31"),
        ("grpo.loss.delta", "above 1, at most 1000"),
        ("grpo.adam_betas", "2 items, each 0 to 1"),
        ("grpo.outer.trainers", "1 to 8"),
        ("grpo.outer.momentum", "0 to below 1"),
        ("grpo.outer.encoding", '"int8" or "float32"'),
        ("toploc.honest.sampling_gap", "with mean, variance, clip"),
        ("admission.inviters", "up to 64 entries"),
        ("credit.slash", ""),
    ],
)
def test_limits_are_in_words(name, constraints):
    assert KEYS[name].constraints == constraints


def test_defaults_are_those_of_the_sections():
    assert KEYS["sampling.length_targets"].default == []
    assert KEYS["environment.options"].default == {}
    assert KEYS["toploc.false_reject_rate"].default == 1e-6
    assert (KEYS["model.rounding"].default, KEYS["model.rounding"].required) == (None, False)
    assert (KEYS["grpo.steps"].default, KEYS["grpo.steps"].required) == (None, True)


def test_equivalents_name_keys_that_exist():
    assert set(EQUIVALENTS) <= set(KEYS)
    for key, names in EQUIVALENTS.items():
        assert names and set(names) <= {PRIME_RL, TRL, VERL}, key
        assert all(re.fullmatch(r"[\w./, ]+( \([\w, ]+\))?", name) for name in names.values()), key
    outer = {name for name in KEYS if name.startswith("grpo.outer.")}
    assert not outer & set(EQUIVALENTS), "no other trainer has outer steps"
    learning = {name for name in KEYS if name.startswith("grpo.")} - outer
    assert learning <= set(EQUIVALENTS), "every trainer has something like each of these"


@every_recipe
def test_an_explained_recipe_is_the_recipe(name):
    text = read_recipe_text(name)[1]
    explained = explained_toml(text)
    assert load_recipe(explained) == read_recipe(name)
    for key in KEYS.values():
        assert re.search(
            rf"^#?(\[{re.escape(key.name)}\]|{key.path[-1]} = )", explained, re.MULTILINE
        )
    behind = re.findall(r"^\w+ = .*?(# .*)$", text, re.MULTILINE)
    assert [comment for comment in behind if comment not in explained] == []
    ours = [line for line in explained.splitlines() if line.startswith("# ")]
    assert max(len(line) for line in ours if line not in text) <= WIDTH
    assert explained_toml(explained) == explained


def uncommented(explained: str, line: str) -> str:
    return explained.replace(f"\n{line}\n", f"\n{line.removeprefix('#')}\n", 1)


@pytest.mark.parametrize("name", ["intellect2", "qwen3-0.6b-math"])
def test_a_key_that_is_left_out_can_be_set_at_its_line(name):
    recipe, explained = read_recipe(name), explained_toml(read_recipe_text(name)[1])
    lines = re.findall(r"^#\w+ = .*$", explained.partition("#[evaluation]")[0], re.MULTILINE)
    own = {"rounding": "dither", "epsilon_high": 0.28, "importance_cap": 2.0}
    assert len(lines) > 5
    for line in lines:
        key = line.removeprefix("#").partition(" ")[0]
        text = uncommented(explained, line)
        table = re.findall(r"^#?\[.*$", explained.partition(f"\n{line}\n")[0], re.MULTILINE)[-1]
        if table in {"#[environment.runtime]", "#[grpo.outer]"}:  # with required keys
            continue
        set_here = load_recipe(uncommented(text, table) if table[0] == "#" else text)
        if key in own:
            (found,) = (
                getattr(section, key)
                for section in (set_here.model, set_here.grpo.loss)
                if hasattr(section, key)
            )
            assert found == own[key]
        else:
            assert set_here == recipe, line


@pytest.mark.parametrize(
    ("header", "read"),
    [
        ("#[evaluation]", lambda recipe: recipe.evaluation.every_versions == 5),
        ("#[environment.runtime]", lambda recipe: recipe.environment.runtime.python == "3.12"),
        ("#[grpo.outer]", lambda recipe: recipe.grpo.outer == OuterSection(trainers=2)),
    ],
)
def test_a_table_that_is_left_out_can_be_set_at_its_lines(header, read):
    before, _, rest = explained_toml(read_recipe_text("qwen3-0.6b-math")[1]).partition(
        f"\n{header}\n"
    )
    table, gap, after = rest.partition("\n\n[")
    table = re.sub(r"^#(\w+ = )", r"\1", table, flags=re.MULTILINE)
    assert read(load_recipe(f"{before}\n{header.removeprefix('#')}\n{table}{gap}{after}"))


STYLES = {
    'name = "testnet"': 'name = """testnet"""',
    "[epochs]\nseconds = 1.0\nrecord_epochs = 20\nrefresh_epochs = 5\n": (
        "[epochs]\nseconds=1.0\n'record_epochs' = 2_0\nrefresh_epochs = 0x5\n"
    ),
    "[credit]\nslash = true\n": (
        "[environment.options]\nb = [\n  1, # one\n  { c = 2 },\n]\n\n"
        "[environment.options.inner]\n'a b' = \"#\"\n\n"
        '[[environment.examples]]\nquestion = "1+1\\n?"\nanswer = """"2" #"""\n\n'
        '[[environment.examples]]\nquestion = "ü"\nanswer = "4"\n\n'
        "[credit]\nslash = true # why\n"
    ),
    'name = "arithmetic"': 'name = "reasoning-gym/gcd"',
    "[committee]\nsize = 2\n": "[committee]  # few\nsize = 2\n",
}


def test_a_recipe_may_be_written_in_any_style():
    text = read_recipe_text("testnet")[1]
    for old, new in STYLES.items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    explained = explained_toml(text)
    recipe = load_recipe(text)
    assert recipe.environment.examples[0].answer == '"2" #'
    assert load_recipe(explained) == recipe
    assert explained_toml(explained) == explained
    for kept in ("[committee]  # few", "slash = true  # why", "record_epochs = 2_0"):
        assert kept in explained


def test_dotted_keys_and_inline_tables_are_read():
    text = re.sub(
        r"\[epochs\]\nseconds = 1.0\nrecord_epochs = 20\nrefresh_epochs = 5\n",
        "",
        read_recipe_text("testnet")[1],
    )
    inline = "epochs = { seconds = 1.0, record_epochs = 20, refresh_epochs = 5 }\n"
    dotted = "epochs.seconds = 1.0\nepochs.record_epochs = 20\nepochs.refresh_epochs = 5\n"
    for written in (inline, dotted):
        explained = explained_toml(text.replace("\n[model]\n", f"{written}\n[model]\n", 1))
        assert load_recipe(explained) == read_recipe("testnet")


def test_a_recipe_without_comments_gets_the_note_once():
    bare = re.sub(r"^#.*\n", "", read_recipe_text("testnet")[1], flags=re.MULTILINE).lstrip()
    explained = explained_toml(bare)
    again = explained_toml(explained)
    diff = "\n".join(difflib.unified_diff(explained.splitlines(), again.splitlines(), n=0))
    assert again == explained, diff
    assert " ".join(explained.replace("\n# ", " ").split()).count(NOTE[:40]) == 1

import json
from datetime import UTC, datetime

import pytest

from node.founding.recipes import read_recipe
from roles.engines.bootstrap.huggingface_import import import_pretrained, section_of
from roles.engines.bootstrap.small_model import END, PADDING, Solved, make_small_model
from roles.engines.files.tokenizer import HuggingFaceTokenizer
from roles.environments.reasoning_gym import generator_seed, solution_of

TINY = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "head_dim": 8}


def recipe_of(**environment):
    recipe = read_recipe("tiny-qwen3-bpe")
    model = recipe.model.model_copy(update={"config": recipe.model.config | TINY})
    section = recipe.environment.model_copy(update=environment)
    return recipe.model_copy(update={"model": model, "environment": section})


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    directory = tmp_path_factory.mktemp("small") / "model"
    make_small_model(recipe_of(), 3, directory, 0.002)
    return directory


def tokenizer_of(directory):
    return HuggingFaceTokenizer(directory, 384, datetime.now(UTC))


def test_it_is_a_directory_like_any_other(made, tmp_path):
    recipe = recipe_of()
    section = section_of(made, recipe.model)
    assert (section.architecture, section.vocabulary_size) == ("qwen3", 384)
    tokenizer = tokenizer_of(made)._tokenizer
    ends = tuple(tokenizer.convert_tokens_to_ids([END, PADDING]))
    assert section.end_tokens == ends == recipe.model.end_tokens
    assert len(import_pretrained(made, tmp_path / "policy", "fp32")) == 32
    assert json.loads((made / "config.json").read_text())["model_type"] == "qwen3"


def test_what_it_learns_from_earns_the_whole_reward(made):
    from roles.environments.jailed.reasoning import check  # noqa: PLC0415 - takes a second

    recipe, tokenizer = recipe_of(), tokenizer_of(made)
    task = Solved(recipe, tokenizer)
    for seed in range(8):
        prompt, solution = task.prompt(seed, None), task.solution(seed)
        assert len(solution) <= recipe.sampling.tokens_max
        assert solution[-1] in recipe.model.end_tokens
        assert tokenizer.decode(solution) == solution_of(recipe.environment, seed).answer
        question = {
            "dataset": "basic_arithmetic",
            "options": recipe.environment.model_dump()["options"],
            "seed": generator_seed(recipe.environment.name, seed),
        }
        assert check(question) in tokenizer.decode(prompt)
        assert check({**question, "answers": [tokenizer.decode(solution), "no"]}) == [1.0, 0.0]


def test_the_tokenizer_has_learned_the_words_of_its_task(made):
    tokenizer = tokenizer_of(made)
    assert len(tokenizer.encode("Calculate answer")) == 2
    text = "é 😀\0"
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_a_task_without_known_solutions_is_refused(tmp_path):
    with pytest.raises(ValueError, match="has no known solutions"):
        make_small_model(recipe_of(name="math/sums"), 0, tmp_path / "model", 0.3)

"""Model forms on the command line, and sequences that fit a model's positions."""

import shutil

import pytest
from huggingface_hub import constants

from node.founding.model import located, prompt_tokens_max, require_positions
from node.founding.recipes import read_recipe
from tests.roles.engines.huggingface import write_directory

RECIPE = read_recipe("tiny-qwen3-bpe")
ID = "Some-Body/A-Model"
COMMAND = (
    "download it: hf download Some-Body/A-Model --local-dir A-Model, then give --model A-Model"
)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    repository = tmp_path / "hub" / "models--Some-Body--A-Model"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("0" * 40)
    (repository / "snapshots").mkdir()
    return write_directory(repository / "snapshots" / ("0" * 40))


def refused(given, tmp_path):
    with pytest.raises(ValueError, match=r".") as caught, located(given, RECIPE, tmp_path):
        pass
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_directory_is_taken_as_it_is(tmp_path):
    made = write_directory(tmp_path / "model")
    with located(str(made), RECIPE, tmp_path) as found:
        assert found == (made, ())
    assert made.exists()


def test_a_hub_id_is_found_in_the_cache(cache, tmp_path):
    with located(ID, RECIPE, tmp_path) as found:
        assert found == (cache, ())


def test_a_hub_id_that_is_not_here_tells_how_to_download_it(cache, tmp_path):
    (cache / "model.safetensors").unlink()
    line = refused(ID, tmp_path)
    assert "only in part in the hub's cache" in line and line.endswith(COMMAND)
    shutil.rmtree(tmp_path / "hub")
    line = refused(ID, tmp_path)
    assert "not in the hub's cache" in line and line.endswith(COMMAND)


@pytest.mark.parametrize("given", ["absent", "a/b/c", "../absent", "/absent", "", "a b/c", "-a/b"])
def test_what_is_neither_here_nor_a_hub_id_is_refused(tmp_path, given, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "no hub id" in refused(given or "nothing", tmp_path)


def test_other_files_and_directories_are_refused(tmp_path):
    (tmp_path / "model.pt").write_bytes(b"PK")
    assert "neither a Hugging Face directory nor a GGUF file" in refused(
        tmp_path / "model.pt", tmp_path
    )
    assert "config.json is missing" in refused(tmp_path, tmp_path)


def test_a_prompt_and_its_answer_fit_into_the_positions():
    room = RECIPE.model.config["max_position_embeddings"] - RECIPE.sampling.tokens_max
    assert prompt_tokens_max(RECIPE) == room > 0
    require_positions(RECIPE, room)
    with pytest.raises(ValueError, match=f"a prompt of {room + 1} tokens .* more than {room} "):
        require_positions(RECIPE, room + 1)


def test_an_answer_that_leaves_no_room_is_refused():
    positions = RECIPE.model.config["max_position_embeddings"]
    longest = RECIPE.sampling.model_copy(update={"tokens_max": positions - 1})
    assert prompt_tokens_max(RECIPE.model_copy(update={"sampling": longest})) == 1
    longest = RECIPE.sampling.model_copy(update={"tokens_max": positions})
    with pytest.raises(ValueError, match="leaves no room for a prompt"):
        prompt_tokens_max(RECIPE.model_copy(update={"sampling": longest}))

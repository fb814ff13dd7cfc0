"""Import benchmark on a few of its directories; its page holds the results of all."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.worlds.text import needs_jail

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "benchmarks" / "models"

pytestmark = [needs_jail, pytest.mark.long, pytest.mark.xdist_group("directories")]


@pytest.fixture(scope="module")
def script():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(SCRIPTS))
        patch.setenv("HF_HUB_OFFLINE", "1")
        import directories  # noqa: PLC0415 - a script beside others

        yield directories


@pytest.fixture(scope="module")
def results():
    names = ["qwen3-chat", "head-differs"]
    command = [sys.executable, str(SCRIPTS / "directories.py"), "--json", "--only", *names]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return json.loads(printed)


def test_directories_become_runs_that_compute_what_hugging_face_computes(results):
    assert results["within_bar"]
    (chat,) = results["founded"]
    assert (chat["name"], chat["end_tokens"]) == ("qwen3-chat", 2)
    # Not 0: the reference is computed in another order.
    for part in ("logits", "logprobs_worker", "logprobs_validator", "logprobs_trainer"):
        assert 0 < chat[part] <= 1e-5
    assert chat["tokens"] > 1000
    assert chat["end_tokens_drawn"] == chat["end_tokens"]
    assert (chat["rejected"], chat["rollouts"]) == (0, 4)
    assert (chat["lies_rejected"], chat["lies"]) == (4, 4)
    assert chat["updates"] == 1


def test_the_line_that_a_person_sees_is_shown(results):
    (refused,) = results["refused"]
    assert refused["line"] == (
        "prime-node: error: weights: lm_head.weight differs from the embedding; set "
        "tie_word_embeddings to false if the model has an output layer of its own"
    )
    assert refused["within_bar"]


GOOD = {
    "logits": 1e-6,
    "logprobs_worker": 1e-6,
    "logprobs_validator": 1e-6,
    "logprobs_trainer": 1e-6,
    "rejected": 0,
    "lies_rejected": 4,
    "updates": 1,
}
OTHERS = {"tokens": 99, "end_tokens": 1, "end_tokens_drawn": 1, "rollouts": 4, "lies": 4}


def test_anything_that_is_not_as_it_should_be_is_told(script):
    good = script.Founded(name="one", features="", **GOOD, **OTHERS)
    assert good.within_bar
    differences = [key for key in GOOD if key.startswith("log")]
    bad = [{key: value} for key in differences for value in (1.1e-5, float("nan"))]
    for wrong in [*bad, {"rejected": 1}, {"lies_rejected": 3}, {"updates": 0}]:
        assert not replace(good, **wrong).within_bar


def test_a_directory_is_refused_for_what_is_wrong_with_it_alone(script, tmp_path):
    known = {one.name: one for one in (*script.TAKEN, *script.REFUSED)}
    cases = {
        "as it should be": known["window"],
        "for something else": replace(known["window"], refused="quantization_config"),
        "though it should not be": replace(known["window"], refused=""),
    }
    found = []
    for name, made in cases.items():
        (tmp_path / name).mkdir()
        found.append(script.try_directory(made, tmp_path / name))
    assert [one.within_bar for one in found] == [True, False, False]
    line = "config.sliding_window: sliding windows are not supported; use a model without windows"
    assert {one.line for one in found} == {f"prime-node: error: {line}"}
    taken = script.try_directory(replace(known["qwen2-plain"], refused="window"), tmp_path)
    assert (taken.line, taken.within_bar) == ("it was founded", False)


def test_the_page_shows_every_directory(script):
    """All from one run: no digits of another run."""
    page = (ROOT / "docs" / "models.md").read_text()
    shown = re.findall(r"^\| `([\w-]+)` \| (.*?) \|", page, re.MULTILINE)
    tried = dict(shown[-len(script.TAKEN) - len(script.REFUSED) :])
    assert list(tried) == [one.name for one in (*script.TAKEN, *script.REFUSED)]
    assert all(tried[one.name] == one.features for one in script.TAKEN)
    assert all(one.refused in tried[one.name] for one in script.REFUSED)

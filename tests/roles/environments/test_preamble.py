"""Messages before each problem, in the manifest and in the prompt."""

import pytest

from protocol.run.recipe import EnvironmentSection
from protocol.run.toml import validated
from roles.environments.preamble import PreambleTokenizer, preamble
from roles.environments.registry import require_task
from roles.ports.text import ChatMessage
from tests.worlds.text import byte_tokenizer

EXAMPLE = {"question": "1 + 1?", "answer": "<answer>2</answer>"}
BEFORE = (
    ChatMessage("system", "Be short."),
    ChatMessage("user", "1 + 1?"),
    ChatMessage("assistant", "<answer>2</answer>"),
)


def section(name="reasoning-gym/gcd", **values):
    return validated(EnvironmentSection, {"name": name, **values})


def test_a_system_message_and_examples_come_in_order():
    assert preamble(section(system="Be short.", examples=(EXAMPLE,))) == BEFORE
    assert preamble(section(examples=(EXAMPLE,))) == BEFORE[1:]
    assert preamble(section()) == ()


def test_a_prompt_begins_with_them(tmp_path):
    plain = byte_tokenizer(tmp_path)
    primed = PreambleTokenizer(plain, BEFORE)
    assert primed.encode_chat("2 + 2?") == plain.encode_chat("2 + 2?", BEFORE)
    inner = (ChatMessage("user", "0?"), ChatMessage("assistant", "0"))
    assert primed.encode_chat("2 + 2?", inner) == plain.encode_chat("2 + 2?", (*BEFORE, *inner))
    assert primed.vocabulary_size == plain.vocabulary_size
    assert primed.decode(primed.encode_chat("x")) == plain.decode(plain.encode_chat("x", BEFORE))


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"name": "arithmetic", "system": "x"}, "system and examples are for tasks in text"),
        ({"examples": ({"question": "", "answer": "x"},)}, "question"),
        ({"examples": (EXAMPLE,) * 9}, "examples"),
        ({"system": "x" * 4001}, "system"),
    ],
)
def test_what_a_recipe_must_not_have_is_named(values, said):
    with pytest.raises(ValueError, match=said):
        section(**values)


def test_a_package_has_prompts_of_its_own():
    with pytest.raises(ValueError, match="the package has its own prompts"):
        require_task(section("verifiers/sums", system="x"), has_dataset=False)

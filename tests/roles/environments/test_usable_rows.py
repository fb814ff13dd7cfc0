import json

import pytest

from protocol.core.crypto import digest
from roles.environments.rows import UnusableRowError, chat_of
from roles.environments.usable_rows import (
    ROWS_TRIED_MAX,
    PromptRoom,
    RowRule,
    UsableRows,
    replacement,
)
from roles.ports.text import ChatMessage
from tests.worlds.messages import run_manifest
from tests.worlds.text import MemoryRows, byte_tokenizer, exchange, program_row

SUM = program_row("Add.", exchange("1 2", "3"))
HALF = {"prompt": "1/2?", "answer": "0.5"}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return byte_tokenizer(tmp_path_factory.mktemp("tokenizer"))


def before(*messages):
    return json.dumps([{"role": role, "content": content} for role, content in messages])


@pytest.mark.parametrize(
    ("family", "row", "reason"),
    [
        ("math", HALF | {"prompt": " \n"}, "prompt is blank"),
        ("math", HALF | {"answer": " "}, "answer is blank"),
        ("code", SUM | {"tests": "[]"}, "tests: tests must be a list of 1 to"),
        ("code", SUM | {"tests": "[" * 10**5}, "tests are nested too deeply"),
        ("code", SUM | {"tests": '[{"input": "\\ud800", "output": ""}]'}, "half a surrogate pair"),
        ("math", HALF | {"chat_before": "{}"}, "a chat must be a list of messages"),
        ("math", HALF | {"chat_before": "[" * 10**5}, "chat_before is not JSON"),
        ("math", HALF | {"chat_before": before(("tool", "x"))}, "a message of a chat must have"),
        ("math", HALF | {"prompt": "p" * 39}, "takes 41 tokens, and 40 are left"),
        ("math", HALF | {"chat_before": before(("system", "s" * 40))}, "takes 47 tokens"),
    ],
)
def test_a_row_that_a_run_cannot_use_has_its_reason(tokenizer, family, row, reason):
    rule = RowRule(family, PromptRoom(40, ()), tokenizer)
    with pytest.raises(UnusableRowError, match=reason):
        rule.check(row)


def test_a_row_that_fits_has_as_many_tokens_as_its_longest_prompt(tokenizer):
    assert RowRule("math", PromptRoom(40, ()), tokenizer).check(HALF | {"prompt": "p" * 38}) == 40
    assert RowRule("code", PromptRoom(None, ()), tokenizer).check(SUM) == 6
    told = len("\n\nThink for 1000 tokens before giving a response.")
    targets = RowRule("math", PromptRoom(40 + told, (10, 1000, 100)), tokenizer)
    assert targets.check(HALF | {"prompt": "p" * 38}) == 40 + told
    with pytest.raises(UnusableRowError, match="tokens"):
        targets.check(HALF | {"prompt": "p" * 39})


def test_the_room_is_what_the_longest_answer_leaves_of_the_positions():
    manifest = run_manifest(model={"config": {"vocab_size": 9, "eos_token_id": 1}})
    assert PromptRoom.of(manifest).tokens_max is None
    config = {"vocab_size": 9, "eos_token_id": 1, "max_position_embeddings": 100}
    manifest = run_manifest(model={"config": config}, sampling={"tokens_max": 30})
    assert PromptRoom.of(manifest).tokens_max == 70


def test_a_template_that_refuses_a_row_makes_it_unusable(tokenizer):
    class Strict:
        def encode_chat(self, question, before=()):
            if before:
                raise RuntimeError("System role\n not supported")
            return tokenizer.encode_chat(question)

    rule = RowRule("math", PromptRoom(None, ()), Strict())
    assert rule.check(HALF) == 6
    with pytest.raises(UnusableRowError, match="cannot hold the prompt: System role not supported"):
        rule.check(HALF | {"chat_before": before(("system", "Be brief."))})


def test_a_machine_without_memory_is_no_reason_against_a_row():
    class Full:
        def encode_chat(self, question, before=()):
            raise MemoryError

    with pytest.raises(MemoryError):
        RowRule("math", PromptRoom(None, ()), Full()).check(HALF)


def test_messages_before_the_prompt_are_part_of_the_chat():
    assert chat_of(HALF) == ("1/2?", ())
    chat = chat_of(HALF | {"chat_before": before(("system", "Be brief."), ("user", "Hello"))})
    assert chat == ("1/2?", (ChatMessage("system", "Be brief."), ChatMessage("user", "Hello")))


def usable(tokenizer, *prompts):
    rows = MemoryRows(*({"prompt": prompt, "answer": "1"} for prompt in prompts))
    return UsableRows("math/x", rows, RowRule("math", PromptRoom(40, ()), tokenizer))


def test_the_same_usable_row_stands_for_an_unusable_one_on_every_node(tokenizer):
    prompts = ["p" * 50 if n % 3 else f"{n}" for n in range(30)]
    first, second = usable(tokenizer, *prompts), usable(tokenizer, *prompts)
    drawn = [first.row(n)["prompt"] for n in range(30)]
    assert [second.row(n)["prompt"] for n in reversed(range(30))] == drawn[::-1]
    assert [first.row(n)["prompt"] for n in range(30)] == drawn
    for n in range(0, 30, 3):
        assert drawn[n] == prompts[n]
    assert len(set(drawn)) == 10
    tried = [replacement("math/x", 1, attempt, 30) for attempt in range(ROWS_TRIED_MAX)]
    assert drawn[1] == next(prompts[n] for n in tried if n % 3 == 0)


def test_replacements_are_spread_over_all_rows_and_by_task_and_row():
    tried = [replacement("math/x", 5, attempt, 1000) for attempt in range(ROWS_TRIED_MAX)]
    drawn = digest(b"math/x/row/5/1"), digest(b"math/x/row/5/2")
    assert tried[:3] == [5, *(int.from_bytes(one, "big") % 1000 for one in drawn)]
    assert len({n // 100 for n in tried}) == 10
    assert tried != [replacement("math/y", 5, attempt, 1000) for attempt in range(ROWS_TRIED_MAX)]
    assert tried[1:] != [replacement("math/x", 6, attempt, 1000) for attempt in range(1, 64)]


def test_a_data_set_without_a_usable_row_is_an_error(tokenizer):
    with pytest.raises(ValueError, match="none of 64 rows of math/x can be used, the last") as told:
        usable(tokenizer, *["p" * 50] * 1000).row(0)
    assert not isinstance(told.value, UnusableRowError)

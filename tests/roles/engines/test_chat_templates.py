"""Prompts against transformers: equal text and tokens for every style of template."""

import json
from datetime import datetime

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from tokenizers.processors import TemplateProcessing
from transformers import AutoTokenizer, PreTrainedTokenizerFast
from transformers.utils import chat_template_utils

from roles.ports.text import ChatMessage
from tests.roles.engines.chat_templates import FILES
from tests.worlds.text import FOUNDED_AT, read_tokenizer

QUESTION = "  What is 1 + 2?\nOr \"é\" <b> & 'c'?\n"
CHATS = {
    "question": (),
    "system": (ChatMessage("system", " Answer briefly.\n"),),
    "turns": (
        ChatMessage("user", "1 + 1"),
        ChatMessage("assistant", "<think>\nhm\n</think>\n\n 2 "),
    ),
    "system-turns": (
        ChatMessage("system", "Be brief."),
        ChatMessage("user", "1 + 1"),
        ChatMessage("assistant", "2"),
    ),
}
RAISING = {"raises-always", "divides-by-zero", "changes-messages"}
UNREADABLE = {"named-without-default", "syntax-error"}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Return a directory whose tokenizer splits bytes and adds a token at the start of texts."""
    directory = tmp_path_factory.mktemp("tokenizer")
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    bare = Tokenizer(models.BPE({letter: n for n, letter in enumerate(alphabet)}, []))
    bare.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    bare.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bare, bos_token="<s>", eos_token="</s>", unk_token="<unk>", pad_token="<p>"
    )
    frames = ["<|im_start|>", "<|im_end|>", "[INST]", "[/INST]", "<start_of_turn>", "<|user|>"]
    tokenizer.add_special_tokens({"additional_special_tokens": frames})
    tokenizer.add_tokens(["<|eot_id|>", "</think>"])
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", tokenizer.bos_token_id)]
    )
    tokenizer.save_pretrained(directory)
    return directory


@pytest.fixture
def directory(made, tmp_path, monkeypatch):
    """Return a function that writes a directory with the files of a template."""

    class Clock(datetime):
        @classmethod
        def now(cls, tz=None):
            return FOUNDED_AT

    monkeypatch.setattr(chat_template_utils, "datetime", Clock)

    def write(files):
        for path in made.iterdir():
            (tmp_path / path.name).write_bytes(path.read_bytes())
        config = json.loads((made / "tokenizer_config.json").read_text())
        for name, content in files.items():
            if name == "chat_template":
                config["chat_template"] = content
            else:
                (tmp_path / name).write_text(content)
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
        return tmp_path

    return write


def expected_of(tokenizer, before):
    """Return the text and the tokens of transformers, or its error."""
    messages = [message._asdict() for message in (*before, ChatMessage("user", QUESTION))]
    try:
        text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    except Exception as error:  # noqa: BLE001 - a template raises what it likes
        return error
    made = tokenizer.apply_chat_template(messages, add_generation_prompt=True)
    return text, tuple(made["input_ids"])


def test_there_are_thirty_templates_and_few_of_them_raise():
    assert len(FILES) >= 30 + len(RAISING) + len(UNREADABLE)


@pytest.mark.parametrize("name", [name for name in FILES if name not in UNREADABLE])
def test_prompts_are_those_of_transformers(directory, name):
    made = directory(FILES[name])
    own, theirs = read_tokenizer(made), AutoTokenizer.from_pretrained(made)
    raised = set()
    for chat, before in CHATS.items():
        expected = expected_of(theirs, before)
        if isinstance(expected, Exception):
            raised.add(chat)
            with pytest.raises(ValueError, match="the chat template raised") as caught:
                own.encode_chat(QUESTION, before)
            assert str(expected) in str(caught.value)
        else:
            assert (
                own.render_chat(QUESTION, before),
                own.encode_chat(QUESTION, before),
            ) == expected
    assert (raised == set(CHATS)) == (name in RAISING)


@pytest.mark.parametrize("name", sorted(UNREADABLE))
def test_a_template_that_cannot_be_read_is_told_in_one_line(directory, name):
    with pytest.raises(ValueError, match="the chat template cannot be read") as caught:
        read_tokenizer(directory(FILES[name]))
    assert "\n" not in str(caught.value)


def test_two_runs_keep_their_own_dates(directory):
    made = directory(FILES["date"])
    early = read_tokenizer(made)
    late = type(early)(made, 1000, FOUNDED_AT.replace(year=2027))
    assert "2026" in early.render_chat("x")
    assert "2027" in late.render_chat("x")

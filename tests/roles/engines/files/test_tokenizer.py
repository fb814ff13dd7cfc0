import json

import pytest

from protocol.run.model_files import BUNDLE_FILES, encode_bundle
from roles.engines.files.tokenizer import of_bundle
from tests.worlds.text import FOUNDED_AT, byte_tokenizer, read_tokenizer


@pytest.fixture
def tokenizer(tmp_path):
    return byte_tokenizer(tmp_path)


def ids(tokenizer, *names):
    return tuple(tokenizer._tokenizer.convert_tokens_to_ids(list(names)))


@pytest.mark.parametrize("text", ["2 + 2 = ?", "é\n\t\0 {{ x }}", "", "  spaces , kept !"])
def test_a_chat_is_framed_by_its_template_and_read_back(tokenizer, text):
    tokens = tokenizer.encode_chat(text)
    assert (tokens[0], tokens[-1]) == ids(tokenizer, "<|user|>", "<|assistant|>")
    assert len(tokens) == len(text.encode()) + 2
    assert tokenizer.decode(tokens) == text
    assert all(0 <= token < tokenizer.vocabulary_size for token in tokens)


def test_the_end_of_the_thoughts_is_kept_and_other_frames_are_not(tokenizer):
    end, thought = ids(tokenizer, "<|end|>", "</think>")
    letters = tokenizer.encode_chat("ab")[1:-1]
    assert tokenizer.decode((letters[0], thought, letters[1], end)) == "a</think>b"


def test_tokens_that_only_the_model_has_are_left_out(tokenizer):
    letters = tokenizer.encode_chat("ab")[1:-1]
    more = tokenizer.vocabulary_size
    assert tokenizer.decode((letters[0], more, letters[1], 2**31)) == "ab"


def test_bytes_that_are_no_text_are_read(tokenizer):
    broken = tokenizer.encode_chat("é")[1:2]
    assert tokenizer.decode(broken) == "\ufffd"


def test_what_a_directory_lacks_is_told_in_one_line(tmp_path, tokenizer):
    with pytest.raises(ValueError, match="has no tokenizer") as raised:
        read_tokenizer(tmp_path / "empty")
    assert "\n" not in str(raised.value)
    # Of a library that transformers would require; without effect.
    assert "there is no tokenizer.json" in str(raised.value)
    assert "sentencepiece" not in str(raised.value)
    (tmp_path / "chat_template.jinja").unlink(missing_ok=True)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    config.pop("chat_template", None)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="has no chat template"):
        read_tokenizer(tmp_path)


def test_a_template_cannot_reach_out_of_its_sandbox(tmp_path, tokenizer):
    (tmp_path / "chat_template.jinja").write_text("{{ ''.__class__.__mro__ }}")
    hostile = read_tokenizer(tmp_path)
    with pytest.raises(ValueError, match=r"SecurityError: .*unsafe"):
        hostile.encode_chat("x")


def test_a_template_that_asks_for_the_day_is_told_when_the_run_began(tmp_path, tokenizer):
    (tmp_path / "chat_template.jinja").write_text("{{ strftime_now('%d %b %Y') }}")
    tokenizer = read_tokenizer(tmp_path)
    assert tokenizer.decode(tokenizer.encode_chat("x")) == "04 Mar 2026"


def test_a_vocabulary_larger_than_the_models_is_refused(tmp_path, tokenizer):
    size = tokenizer.vocabulary_size
    assert read_tokenizer(tmp_path, size).vocabulary_size == size
    with pytest.raises(ValueError, match=f"the tokenizer has {size} tokens, the model {size - 1}"):
        read_tokenizer(tmp_path, size - 1)


def test_a_bundle_is_read_as_its_directory_is(tmp_path, tokenizer):
    bundle = tmp_path / "bundle"
    names = [path.name for path in tmp_path.iterdir() if path.name in BUNDLE_FILES]
    bundle.write_bytes(encode_bundle({name: (tmp_path / name).read_bytes() for name in names}))
    read = of_bundle(bundle, 1000, FOUNDED_AT)
    assert read.encode_chat("1 + 1") == tokenizer.encode_chat("1 + 1")
    bundle.write_bytes(encode_bundle({}))
    with pytest.raises(ValueError, match="has no tokenizer"):
        of_bundle(bundle, 1000, FOUNDED_AT)
    bundle.write_bytes(b"none")
    with pytest.raises(ValueError, match="undecodable"):
        of_bundle(bundle, 1000, FOUNDED_AT)

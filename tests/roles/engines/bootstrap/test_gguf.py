"""GGUF files through transformers' reader: the written model, or a refusal."""

import sys

import pytest
import torch
from safetensors.torch import load_file

from node.founding.model import import_model, located, notes_of_model
from node.founding.recipes import read_recipe
from roles.engines.architectures.configuration import UnsupportedModelError
from roles.engines.architectures.registry import ARCHITECTURES
from roles.engines.bootstrap.gguf import convert_gguf
from roles.ports.text import ChatMessage
from tests.worlds.text import read_tokenizer

SIZES = {
    "vocab_size": 260,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "rope_theta": 100_000.0,
}
RECIPE = read_recipe("tiny-qwen3-bpe")


def model(architecture, **config):
    torch.manual_seed(1)
    made = ARCHITECTURES[architecture]
    return made.model(made.config(**SIZES | {"eos_token_id": 257} | config))


@pytest.fixture
def write(tmp_path):
    """Return a function that writes a GGUF file; skips where it cannot be read."""
    pytest.importorskip("accelerate")
    pytest.importorskip("gguf")
    from tests.roles.engines.gguf_files import write_gguf  # noqa: PLC0415 - it is optional

    return lambda *arguments, **extra: write_gguf(tmp_path / "small.gguf", *arguments, **extra)


CASES = {
    "llama": ("llama", {}),
    "llama-tied": ("llama", {"tie_word_embeddings": True}),
    "qwen2": ("qwen2", {}),
    "qwen3-narrow-heads": ("qwen3", {"head_dim": 12, "tie_word_embeddings": True}),
}


@pytest.mark.parametrize(("architecture", "config"), CASES.values(), ids=CASES)
def test_a_run_gets_the_model_that_was_written(write, tmp_path, architecture, config):
    made = model(architecture, **config)
    path = write(made)
    with located(path, RECIPE, tmp_path) as (directory, notes):
        section, _ = import_model(directory, RECIPE, tmp_path / "policy")
        ignored = notes_of_model(directory)
        tokens = read_tokenizer(directory).encode_chat("a", [ChatMessage("user", "1")])
    assert not directory.exists()
    assert section.name == "small"
    assert (section.architecture, section.end_tokens) == (architecture, (257,))
    assert section.config["rms_norm_eps"] == 1e-5
    assert section.config["rope_parameters"]["rope_theta"] == 100_000.0
    expected = made.state_dict()
    if config.get("tie_word_embeddings"):
        del expected["lm_head.weight"]
    own = load_file(tmp_path / "policy")
    assert own.keys() == expected.keys()
    assert all(torch.equal(own[name], expected[name]) for name in own)
    assert [tokens[0], tokens[2], tokens[4]] == [258, 258, 259]
    assert "'smollm'" in notes[1] and "fp32" in notes[0]
    assert "_name_or_path" not in ignored[-1]


def test_weights_are_rounded_to_the_run_s_dtype(write, tmp_path):
    made = model("llama")
    convert_gguf(write(made), tmp_path / "out", "bf16")
    own = load_file(tmp_path / "out" / "model.safetensors")
    assert torch.equal(own["lm_head.weight"], made.state_dict()["lm_head.weight"].bfloat16())


@pytest.mark.parametrize(
    ("extra", "line"),
    [
        ({"rope__scaling__type": "yarn"}, "llama.rope.scaling.type: 'yarn': transformers drops it"),
        ({"expert_count": 8}, "llama.expert_count: 8: transformers drops it"),
        ({"attention__sliding_window": 32}, "llama.attention.sliding_window: 32"),
        ({"rope__dimension_count": 4}, "heads of several sizes"),
        ({"rope_freqs": True}, "rope_freqs.weight: transformers drops it"),
    ],
)
def test_what_the_reader_would_drop_is_refused(write, tmp_path, extra, line):
    path = write(model("llama"), **extra)
    with pytest.raises(UnsupportedModelError) as caught:
        convert_gguf(path, tmp_path / "out", "fp32")
    assert any(line in one for one in caught.value.refusals)
    assert not (tmp_path / "out").exists()


def test_a_tokenizer_that_cannot_be_rebuilt_is_refused(write, tmp_path):
    path = write(model("llama"))
    path.write_bytes(path.read_bytes().replace(b"a b", b"a c"))
    with pytest.raises(ValueError, match=r"small.gguf cannot be converted: .*out of vocabulary"):
        convert_gguf(path, tmp_path / "out", "fp32")


def test_a_damaged_file_is_refused(write, tmp_path):
    path = write(model("llama"))
    for length in (4, 100, 5000):
        path.write_bytes(path.read_bytes()[:length] if length < 5000 else b"GGUF" + b"\xff" * 200)
        with pytest.raises(ValueError, match=r"not a readable GGUF file.*download it again"):
            convert_gguf(path, tmp_path / "out", "fp32")


@pytest.mark.parametrize("package", ["gguf", "accelerate"])
def test_without_its_packages_the_command_is_told(tmp_path, monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF")
    with pytest.raises(ValueError, match=r"pip install 'prime-node\[gguf\]'"):
        convert_gguf(path, tmp_path / "out", "fp32")

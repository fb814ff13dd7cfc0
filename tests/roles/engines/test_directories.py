"""Directories in the wild, each with one peculiarity: accepted, noted or refused by a line."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from node.founding.model import import_model, notes_of_model
from node.founding.recipes import read_recipe
from roles.engines.architectures.configuration import UnsupportedModelError
from roles.engines.architectures.registry import ARCHITECTURES
from tests.worlds.text import byte_tokenizer

SIZES = {
    "vocab_size": 300,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "eos_token_id": 256,
}
ROPE = {"rope_type": "default", "rope_theta": 10_000.0}
NORM = "model.norm.weight"
SAVED = "config: no effect on the computation: "


def config(**values):
    def edit(path):
        own = json.loads((path / "config.json").read_text())
        (path / "config.json").write_text(json.dumps(own | values))

    return edit


def weights(change):
    def edit(path):
        tensors = load_file(path / "model.safetensors")
        change(tensors)
        save_file(tensors, path / "model.safetensors")

    return edit


def file(name, content):
    return lambda path: (path / name).write_bytes(content)


def without(name):
    return lambda path: (path / name).unlink()


def is_pickled(path):
    torch.save({}, path / "pytorch_model.bin")
    (path / "model.safetensors").unlink()


TEMPLATE = "chat_template.jinja"
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"

NOTED = [
    ("as transformers saves it", [], f"{SAVED}bos_token_id, dtype, "),
    ("name of a conversion", [config(_model_name_or_path="x", unk_token_id=0)], "_model_name_or"),
    ("unknown token", [config(unk_token_id=0)], "unk_token_id"),
    ("kernel of attention", [config(_attn_implementation="flash_attention_2")], "_attn_impl"),
    ("flash attention", [config(_flash_attn_2_enabled=True)], "_flash_attn_2_enabled"),
    ("checkpointing", [config(gradient_checkpointing=True)], "gradient_checkpointing"),
    ("positions, once more", [config(max_sequence_length=64)], "max_sequence_length"),
    ("no vision", [config(vision_config=None)], "config.vision_config: None is ignored"),
    ("no experts", [config(moe_layers=[])], "config.moe_layers: [] is ignored"),
    ("no norms of queries", [config(use_qk_norm=False)], "config.use_qk_norm: False is ignored"),
    (
        "full attention in all layers",
        [config(layer_types=["full_attention"] * 2, sliding_window=None)],
        "config.layer_types: ['full_attention', 'full_attention'] is ignored, llama",
    ),
    (
        "a window that is off",
        [config(sliding_window=64, use_sliding_window=False, max_window_layers=1)],
        "config.sliding_window: 64 is ignored",
    ),
    (
        "positions in both words",
        [config(rope_scaling=ROPE, rope_parameters=ROPE)],
        "config.rope_scaling repeats config.rope_parameters",
    ),
    ("a name in old letters", [config(architectures=["LLaMAForCausalLM"])], SAVED),
    ("another name of SiLU", [config(hidden_act="swish")], SAVED),
    ("byte order mark", [lambda p: _prefix(p / "config.json", b"\xef\xbb\xbf")], SAVED),
    ("saved by peft", [file("adapter_config.json", b"{}")], SAVED),
]

REFUSED = [
    ("a key that may compute", [config(logit_scale=0.5)], "config.logit_scale: 0.5 is no key"),
    ("window of llama", [config(sliding_window=64)], "config.sliding_window: sliding windows"),
    (
        "some layers in windows",
        [config(layer_types=["full_attention", "sliding_attention"])],
        "config.sliding_window: sliding windows",
    ),
    (
        "positions that differ",
        [config(rope_scaling={"type": "linear", "factor": 2.0}, rope_parameters=ROPE)],
        "config.rope_scaling and config.rope_parameters differ; keep",
    ),
    ("NaN", [weights(lambda t: t[NORM].fill_(float("nan")))], f"{NORM} is not finite in 32 of 32"),
    (
        "infinite",
        [weights(lambda t: t[NORM][:1].fill_(float("inf")))],
        f"{NORM} is not finite in 1 of",
    ),
    ("integers", [weights(lambda t: t.update({NORM: t[NORM].int()}))], f"{NORM} is of torch.int32"),
    ("tensor missing", [weights(lambda t: t.pop(NORM))], f"{NORM} is missing; config.json and"),
    ("value head", [weights(lambda t: t.update(v_head=torch.ones(1)))], "v_head is too many; the"),
    ("other sizes", [config(intermediate_size=64)], "has the shape [32, 48], not [32, 64]"),
    ("quantised", [config(quantization_config={"bits": 4})], "config.quantization_config: {'bits'"),
    ("code", [config(auto_map={"AutoModel": "m.M"})], "engines run no code of a directory"),
    ("adapter", [file("adapter_config.json", b"{}"), without("model.safetensors")], "merge it"),
    ("pickled", [is_pickled], "save it with transformers"),
    ("GGUF", [file("a.gguf", b"GGUF"), without("model.safetensors")], "a.gguf"),
    ("pointer", [file("model.safetensors", POINTER)], "run git lfs pull"),
    ("truncated", [file("model.safetensors", b"12345678")], "not a readable file of tensors"),
    ("no tokenizer", [without("tokenizer.json")], "there is no tokenizer.json; download it"),
    ("half a tokenizer", [file("tokenizer.json", b"{")], "the model has no tokenizer: "),
    ("no template", [without(TEMPLATE)], "the model has no chat template; use its instruct"),
    ("unreadable template", [file(TEMPLATE, b"{% if %}")], "the chat template cannot be read: "),
    ("template that refuses", [file(TEMPLATE, b"{{ raise_exception('no') }}")], "raised Template"),
    ("few tokens", [config(vocab_size=257)], "tokens, the model 257; use the tokenizer"),
]


def _prefix(path, content):
    path.write_bytes(content + path.read_bytes())


@pytest.fixture(scope="module")
def recipe():
    return read_recipe("tiny-qwen3-bpe")


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    """Return a small Llama as saved by transformers."""
    directory = tmp_path_factory.mktemp("saved") / "llama"
    made = ARCHITECTURES["llama"]
    torch.manual_seed(1)
    made.model(made.config(**SIZES)).save_pretrained(directory)
    byte_tokenizer(directory)
    return directory


@pytest.fixture
def edited(llama, tmp_path):
    def write(edits):
        path = shutil.copytree(llama, tmp_path / "model")
        for edit in edits:
            edit(path)
        return path

    return write


def refusals_of(directory, recipe):
    policy = directory.parent / "policy"
    with pytest.raises(UnsupportedModelError) as caught:
        import_model(directory, recipe, policy)
    assert not policy.exists()
    assert not any("\n" in line for line in caught.value.refusals)
    return caught.value.refusals


@pytest.mark.parametrize(("edits", "note"), [one[1:] for one in NOTED], ids=[n[0] for n in NOTED])
def test_what_changes_nothing_is_taken_and_noted(edited, llama, recipe, edits, note):
    directory = edited(edits)
    section, digest = import_model(directory, recipe, directory.parent / "policy")
    assert any(note in line for line in notes_of_model(directory))
    plain = import_model(llama, recipe, directory.parent / "plain")
    assert (section.config, digest) == (plain[0].config, plain[1])


@pytest.mark.parametrize(
    ("edits", "line"), [one[1:] for one in REFUSED], ids=[n[0] for n in REFUSED]
)
def test_what_would_be_another_model_is_refused_in_a_line(edited, recipe, edits, line):
    refusals = refusals_of(edited(edits), recipe)
    assert any(line in one for one in refusals)
    assert len(refusals) == 1 or line.startswith("tokens, the model")


def test_all_that_is_wrong_with_a_directory_is_told_together(edited, recipe):
    wrong = [
        config(hidden_act="gelu", num_experts=4),
        weights(lambda t: t[NORM].fill_(float("nan"))),
        without(TEMPLATE),
    ]
    refusals = refusals_of(edited(wrong), recipe)
    starts = [
        "config.hidden_act",
        "config.num_experts",
        f"weights: {NORM}",
        "the model has no chat",
    ]
    assert len(refusals) == len(starts)
    for start in starts:
        assert any(one.startswith(start) for one in refusals)


def test_a_task_without_text_takes_a_directory_without_tokenizer(edited):
    directory = edited([without("tokenizer.json"), without(TEMPLATE)])
    section, _ = import_model(directory, read_recipe("testnet"), directory.parent / "policy")
    assert section.name == "model"


def test_the_model_is_named_as_its_repository_in_the_hub_s_cache(llama, tmp_path, recipe):
    snapshot = tmp_path / "models--Some-Body--A-Model.v2" / "snapshots" / ("0" * 40)
    shutil.copytree(llama, snapshot)
    section, _ = import_model(snapshot, recipe, tmp_path / "policy")
    assert section.name == "A-Model.v2"


def test_swish_and_unused_windows_compute_the_same_in_transformers(edited):
    """Accepting them is a claim about transformers, too."""
    directory = edited([])
    tokens = torch.arange(12)[None]
    plain = AutoModelForCausalLM.from_pretrained(directory)(input_ids=tokens).logits
    config(hidden_act="swish", layer_types=["full_attention"] * 2)(directory)
    config(sliding_window=4, use_sliding_window=False, max_sequence_length=4)(directory)
    other = AutoModelForCausalLM.from_pretrained(directory)(input_ids=tokens).logits
    assert torch.equal(plain, other)

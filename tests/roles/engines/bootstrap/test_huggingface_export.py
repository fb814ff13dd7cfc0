import json

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from protocol.core.types import Digest
from roles.engines.architectures.configuration import configuration
from roles.engines.architectures.model import build_model
from roles.engines.bootstrap.huggingface_export import (
    config_of,
    export_weights,
    generation_config_of,
)
from roles.engines.bootstrap.huggingface_import import (
    import_directory,
    import_pretrained,
    section_of,
)
from tests.roles.engines import tiny
from tests.roles.engines.tiny import CONFIG

PUBLISHED = {
    "llama": {"tie_word_embeddings": True, "attention_bias": True},
    "qwen2": {},
    "qwen3": {"head_dim": 32, "tie_word_embeddings": True},
}


def published(directory, architecture, dtype=torch.float32, **files):
    """Write a model with random weights as transformers does; return its directory."""
    torch.manual_seed(2)
    config = configuration(architecture, CONFIG | PUBLISHED[architecture])
    model = build_model(config, torch.float32, "cpu").to(dtype)
    model.save_pretrained(directory, **files)
    return directory


def exported(directory, architecture, tmp_path, *, dtype="fp32", **options):
    """Import a directory, export it again, and return its policy and the new directory."""
    policy, out = tmp_path / "policy", tmp_path / "out"
    section, digest = import_directory(directory, tiny.model(dtype), policy, in_text=False)
    out.mkdir()
    export_weights(policy, digest, out, **options)
    config = json.loads((directory / "config.json").read_text())
    (out / "config.json").write_text(json.dumps(config_of(section, config)))
    return policy, out


def loaded(directory):
    """Return the parameters as transformers loads them, with its default dtype."""
    model = AutoModelForCausalLM.from_pretrained(directory, dtype="auto")
    return {name: one.detach() for name, one in model.named_parameters()}


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("architecture", PUBLISHED)
def test_transformers_loads_the_policy_bit_for_bit(architecture, dtype, tmp_path):
    base = published(tmp_path / "base", architecture)
    policy, out = exported(base, architecture, tmp_path, dtype=dtype)
    held, found = load_file(policy), loaded(out)
    assert found.keys() == held.keys()
    assert all(found[name].dtype == held[name].dtype for name in held)
    assert all(torch.equal(found[name], held[name]) for name in held)
    assert ("lm_head.weight" in held) is not PUBLISHED[architecture].get("tie_word_embeddings")


def test_a_model_in_float32_becomes_the_bf16_of_its_policy(tmp_path):
    """Otherwise transformers would load the directory in the dtype of its base."""
    base = published(tmp_path / "base", "qwen2")
    values = json.loads((base / "config.json").read_text())
    values["torch_dtype"] = values.pop("dtype")
    (base / "config.json").write_text(json.dumps(values))
    _, out = exported(base, "qwen2", tmp_path, dtype="bf16")
    assert {one.dtype for one in loaded(out).values()} == {torch.bfloat16}
    config = json.loads((out / "config.json").read_text())
    assert config["torch_dtype"] == "bfloat16"  # what transformers 4 reads


def test_several_files_are_read_as_one_model_and_import_again(tmp_path):
    base = published(tmp_path / "base", "qwen3")
    policy, out = exported(base, "qwen3", tmp_path, shard_bytes_max=40_000)
    parts = sorted(path.name for path in out.glob("*.safetensors"))
    count = len(parts)
    assert count > 3 and parts[0] == f"model-00001-of-{count:05d}.safetensors"
    assert all((out / name).stat().st_size < 45_000 for name in parts)
    held, found = load_file(policy), loaded(out)
    assert all(torch.equal(found[name], held[name]) for name in held)
    index = json.loads((out / "model.safetensors.index.json").read_text())
    assert index["weight_map"].keys() == held.keys()
    assert index["metadata"]["total_size"] == sum(4 * one.numel() for one in held.values())
    assert import_pretrained(out, tmp_path / "again", "fp32") == import_pretrained(
        base, tmp_path / "own", "fp32"
    )


def test_a_manifest_without_a_published_configuration_makes_one(tmp_path):
    base = published(tmp_path / "base", "llama")
    section = section_of(base, tiny.model("bf16"))
    config = config_of(section)
    assert (config["model_type"], config["dtype"]) == ("llama", "bfloat16")
    assert config["architectures"] == ["LlamaForCausalLM"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert section_of(tmp_path, section).config == section.config
    tokens = {"bos_token_id": None, "eos_token_id": [1, 2], "pad_token_id": 0}
    assert generation_config_of(config | tokens) == {"eos_token_id": [1, 2], "pad_token_id": 0}


def test_another_policy_or_a_damaged_file_is_refused(tmp_path):
    base = published(tmp_path / "base", "qwen2")
    policy = tmp_path / "policy"
    _, digest = import_directory(base, tiny.model(), policy, in_text=False)
    with pytest.raises(ValueError, match=f"holds the policy {digest.hex()}, not {bytes(32).hex()}"):
        export_weights(policy, Digest(bytes(32)), tmp_path)
    policy.write_bytes(policy.read_bytes()[:-1])
    with pytest.raises(ValueError, match="not a readable file of tensors"):
        export_weights(policy, digest, tmp_path)

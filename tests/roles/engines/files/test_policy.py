import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import PhiConfig, PhiForCausalLM, Qwen2ForCausalLM

from protocol.core.types import Digest
from roles.engines.architectures.configuration import configuration
from roles.engines.architectures.model import build_model, shapes_of, tensors_of
from roles.engines.bootstrap.huggingface_import import import_pretrained, section_of
from roles.engines.files.policy import digest_of, read_policy, write_policy
from tests.roles.engines import tiny


@pytest.fixture
def shapes(tiny_config):
    return shapes_of(configuration("qwen2", tiny_config))


def test_a_written_policy_reads_back_with_its_digest(policies, shapes):
    tensors = read_policy(policies[0].path, policies[0].digest, shapes)
    assert {name: tuple(tensor.shape) for name, tensor in tensors.items()} == shapes
    assert digest_of(tensors) == policies[0].digest != policies[1].digest


def test_the_digest_ignores_order_and_sees_every_bit(policies):
    tensors = load_file(policies[0].path)
    assert digest_of(dict(reversed(tensors.items()))) == policies[0].digest
    tensors["model.norm.weight"].view(torch.int32)[3] ^= 1
    assert digest_of(tensors) != policies[0].digest


def test_the_digest_names_dtype_and_shape():
    zeros = torch.zeros(4)
    digests = {
        digest_of({"w": zeros}),
        digest_of({"w": zeros.view(2, 2)}),
        digest_of({"w": torch.zeros(8, dtype=torch.bfloat16)}),
        digest_of({"w": torch.zeros(8, dtype=torch.float16)}),
    }
    assert len(digests) == 4
    with pytest.raises(ValueError, match="float64"):
        digest_of({"w": zeros.double()})


def test_another_policy_is_refused(policies, shapes):
    with pytest.raises(ValueError, match="does not hold the policy"):
        read_policy(policies[0].path, policies[1].digest, shapes)


def test_a_truncated_or_absent_file_is_refused(policies, shapes, tmp_path):
    damaged = tmp_path / "damaged"
    damaged.write_bytes(policies[0].path.read_bytes()[:-1])
    for path in (damaged, tmp_path / "absent"):
        with pytest.raises(ValueError, match="not a readable file"):
            read_policy(path, policies[0].digest, shapes)


def test_tensors_of_another_model_are_refused(policies, shapes, tmp_path):
    tensors = load_file(policies[0].path)
    del tensors["lm_head.weight"]
    digest = write_policy(tensors, tmp_path / "p")
    with pytest.raises(ValueError, match="configured model"):
        read_policy(tmp_path / "p", digest, shapes)


@pytest.mark.timeout(60)  # reading it would take all memory
def test_a_file_of_other_tensors_is_refused_before_they_are_read(policies, shapes, tmp_path):
    """A trainer may publish far more than the model holds; this file would fill the memory."""
    length = 1 << 36
    header = json.dumps(
        {"x": {"dtype": "F32", "shape": [length // 4], "data_offsets": [0, length]}}
    ).encode()
    with (tmp_path / "p").open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + length)
    with pytest.raises(ValueError, match="configured model"):
        read_policy(tmp_path / "p", policies[0].digest, shapes)


def test_a_crash_while_writing_leaves_the_old_policy(policies, shapes, tmp_path):
    path = tmp_path / "p"
    digest = write_policy(load_file(policies[0].path), path)
    (tmp_path / "p.partial").write_bytes(b"half")
    read_policy(path, digest, shapes)


def test_a_tied_output_layer_is_stored_once(tiny_config, tmp_path):
    config = configuration("qwen2", tiny_config | {"tie_word_embeddings": True})
    tensors = tensors_of(build_model(config, torch.float32, "cpu"))
    assert "lm_head.weight" not in tensors
    digest = write_policy(tensors, tmp_path / "p")
    read_policy(tmp_path / "p", digest, shapes_of(config))


def test_a_hugging_face_directory_becomes_a_policy(tiny_config, tmp_path):
    model = build_model(configuration("qwen2", tiny_config), torch.float32, "cpu")
    model.save_pretrained(tmp_path / "published")
    section = section_of(tmp_path / "published", tiny.model("bf16"))
    config = configuration(section.architecture, section.config)
    digest = import_pretrained(tmp_path / "published", tmp_path / "p", "bf16")
    tensors = read_policy(tmp_path / "p", digest, shapes_of(config))
    loaded = build_model(config, torch.bfloat16, "cpu")
    loaded.load_state_dict(tensors)
    published = Qwen2ForCausalLM.from_pretrained(tmp_path / "published", dtype=torch.bfloat16)
    tokens = torch.tensor([[2, 5, 9, 4]])
    expected = published(input_ids=tokens).logits
    assert torch.equal(loaded(input_ids=tokens).logits, expected)


def test_a_directory_of_another_architecture_is_refused(tmp_path):
    sizes = {"vocab_size": 8, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 1, "num_key_value_heads": 1}
    phi = PhiForCausalLM(PhiConfig(**sizes, **heads))
    phi.save_pretrained(tmp_path / "phi")
    with pytest.raises(ValueError, match="phi"):
        import_pretrained(tmp_path / "phi", tmp_path / "p", "fp32")
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    with pytest.raises(ValueError, match="gpt2"):
        section_of(tmp_path, tiny.model("fp32"))


@pytest.mark.parametrize(
    "change",
    [
        {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 0},
        {"attention_dropout": 0.1},
        {"eos_token_id": None},
    ],
)
def test_what_the_engines_do_not_compute_is_refused(tiny_config, change):
    with pytest.raises(ValueError, match=r"not supported|eos_token_id"):
        configuration("qwen2", tiny_config | change)


def test_big_models_take_their_dtype_without_a_float32_copy(tiny_config):
    model = build_model(configuration("qwen2", tiny_config), torch.bfloat16, "cpu")
    assert isinstance(model, Qwen2ForCausalLM)
    assert {tensor.dtype for tensor in tensors_of(model).values()} == {torch.bfloat16}
    assert model.model.rotary_emb.inv_freq.dtype == torch.float32


def test_a_safetensors_file_of_other_tensors_is_refused(tmp_path, shapes):
    save_file({"x": torch.zeros(1)}, tmp_path / "p")
    with pytest.raises(ValueError, match="does not hold"):
        read_policy(tmp_path / "p", Digest(bytes(32)), shapes)

"""Weights of a published directory are imported completely, once each, without others."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from roles.engines.bootstrap.huggingface_import import import_pretrained
from roles.engines.files.policy import DTYPES, digest_of
from tests.roles.engines.test_architectures import Case, publish

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
NORM = "model.norm.weight"


def made(directory, **config):
    """Return the path of a directory's weights, and the weights."""
    publish(Case("made", "qwen2", config), directory)
    path = directory / "model.safetensors"
    return path, load_file(path)


def imported(directory, precision="fp32"):
    path = directory / "policy"
    digest = import_pretrained(directory, path, precision)
    assert digest_of(load_file(path)) == digest
    return load_file(path)


def refused(directory):
    with pytest.raises(ValueError, match=r".") as caught:
        import_pretrained(directory, directory / "policy", "fp32")
    assert not (directory / "policy").exists()
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("stored", [(EMBEDDING,), (HEAD,), (EMBEDDING, HEAD)])
def test_a_tied_head_may_be_stored_or_not(tmp_path, stored):
    path, tensors = made(tmp_path, tie_word_embeddings=True)
    save_file(
        {n: t for n, t in tensors.items() if n not in (EMBEDDING, HEAD)}
        | {name: tensors[EMBEDDING].clone() for name in stored},
        path,
    )
    assert digest_of(imported(tmp_path)) == digest_of(tensors)


def test_a_tied_head_that_is_another_is_refused(tmp_path):
    path, tensors = made(tmp_path, tie_word_embeddings=True)
    save_file(tensors | {HEAD: tensors[EMBEDDING] + 1}, path)
    assert "lm_head.weight differs from the embedding" in refused(tmp_path)


def test_wrong_tensors_are_named(tmp_path):
    path, tensors = made(tmp_path)
    gone = {name: tensor for name, tensor in tensors.items() if name != NORM}
    changes = [
        (gone, f"{NORM} is missing"),
        (tensors | {"model.extra": torch.zeros(1)}, "model.extra is too many"),
        (tensors | {NORM: torch.zeros(65)}, f"{NORM} has the shape [65], not [64]"),
        (tensors | {NORM: torch.zeros(64, dtype=torch.int8)}, f"{NORM} is of torch.int8"),
        ({name: tensor for name, tensor in tensors.items() if "norm" in name}, "and 17 more"),
    ]
    for changed, message in changes:
        save_file(changed, path)
        assert message in refused(tmp_path)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_weights_that_are_not_finite_are_named_and_counted(tmp_path, value):
    path, tensors = made(tmp_path)
    tensors[NORM][3:5] = value
    tensors[EMBEDDING][0, 0] = value
    save_file(tensors, path)
    assert refused(tmp_path).startswith(
        f"weights: {EMBEDDING} is not finite in 1 of 2048 values as torch.float32, {NORM} is not"
    )


def test_weights_that_only_rounding_makes_infinite_are_refused(tmp_path):
    path, tensors = made(tmp_path)
    largest = torch.finfo(torch.float32).max
    tensors[EMBEDDING][:, :] = largest  # their sum is infinite, they are finite
    save_file(tensors, path)
    imported(tmp_path)
    with pytest.raises(ValueError, match=r"not finite in \d+ of 2048 values as torch.bfloat16"):
        import_pretrained(tmp_path, tmp_path / "rounded", "bf16")


def test_angles_of_old_files_are_left_out(tmp_path):
    path, tensors = made(tmp_path)
    angles = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(8)}
    save_file(tensors | angles, path)
    assert digest_of(imported(tmp_path)) == digest_of(tensors)


@pytest.mark.parametrize("stored", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_weights_are_rounded_to_the_policy_s_dtype(tmp_path, stored, precision):
    path, tensors = made(tmp_path)
    stored_tensors = {name: tensor.to(stored) for name, tensor in tensors.items()}
    save_file(stored_tensors, path)
    expected = {name: tensor.to(DTYPES[precision]) for name, tensor in stored_tensors.items()}
    assert digest_of(imported(tmp_path, precision)) == digest_of(expected)


def sharded(directory, weight_map):
    path, tensors = made(directory)
    path.unlink()
    halves = list(tensors.items())[::2], list(tensors.items())[1::2]
    for number, half in enumerate(halves):
        save_file(dict(half), directory / f"{number}.safetensors")
    index = directory / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))
    return tensors


def test_shards_are_those_of_the_index(tmp_path):
    tensors = sharded(tmp_path, {"a": "0.safetensors", "b": "1.safetensors"})
    (tmp_path / "2.safetensors").write_bytes(b"not named")
    assert digest_of(imported(tmp_path)) == digest_of(tensors)


@pytest.mark.parametrize(
    ("weight_map", "message"),
    [
        ({"a": "0.safetensors"}, "is missing"),
        ({"a": "0.safetensors", "b": "2.safetensors"}, "2.safetensors is not a readable file"),
        ({"a": "../0.safetensors"}, "something else"),
        ({"a": ".."}, "something else"),
        ({"a": 1}, "no weight_map"),
        (None, "no weight_map"),
    ],
)
def test_a_wrong_index_is_refused(tmp_path, weight_map, message):
    sharded(tmp_path, weight_map)
    assert message in refused(tmp_path)


def test_a_tensor_in_two_shards_is_refused(tmp_path):
    sharded(tmp_path, {"a": "0.safetensors", "b": "1.safetensors"})
    one = load_file(tmp_path / "0.safetensors")
    save_file(load_file(tmp_path / "1.safetensors") | one, tmp_path / "1.safetensors")
    assert "is in another file, too" in refused(tmp_path)


def test_pickled_weights_are_not_read(tmp_path):
    path, tensors = made(tmp_path)
    path.unlink()
    torch.save(tensors, tmp_path / "pytorch_model.bin")
    assert "no model.safetensors" in refused(tmp_path)


def test_a_damaged_file_is_refused(tmp_path):
    path, _ = made(tmp_path)
    path.write_bytes(path.read_bytes()[:-1])
    assert "not a readable file of tensors" in refused(tmp_path)

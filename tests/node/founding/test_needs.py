"""Estimate of a run's resource needs, made by a node before it joins."""

import math
import shutil

import pytest

from node.founding.needs import estimate, needs_of, require_room
from node.founding.recipes import read_recipe, recipe_names
from node.founding.sizes import weights_in
from node.local.config import NodeConfig
from node.local.datadir import open_data_dir
from node.local.errors import ExitCode, NodeError
from protocol.core.types import Role
from protocol.run.recipe import ModelSection
from protocol.run.sections import OuterSection
from tests.worlds.messages import run_manifest

RUN = run_manifest()
SIZES = {
    "vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
    "eos_token_id": 0,
}  # fmt: skip


def section(architecture, **config):
    return ModelSection(
        name="x", architecture=architecture, dtype="bf16", config={**SIZES, **config}
    )


@pytest.mark.parametrize(
    "model",
    [
        *(read_recipe(name).model for name in recipe_names()),
        *(section(name) for name in ("llama", "qwen2", "qwen3")),
        *(section(name, tie_word_embeddings=True) for name in ("llama", "qwen2", "qwen3")),
        *(section(name) for name in ("mistral", "smollm3", "granite", "olmo2")),
        section("olmo2", attention_bias=True, head_dim=24),
        section("llama", attention_bias=True),
        section("llama", mlp_bias=True, head_dim=24),
        section("llama", num_key_value_heads=4),
        section("qwen3", attention_bias=True, head_dim=16),
    ],
)
def test_weights_are_counted_as_the_engines_make_them(model):
    from roles.engines.architectures.model import weights_of  # noqa: PLC0415 - torch

    assert weights_in(model) == weights_of(model)


def test_a_model_without_a_size_has_no_estimate():
    model = RUN.model.model_copy(update={"config": {"vocab_size": 8}})
    assert estimate(RUN.model_copy(update={"model": model})) is None


def test_the_blobs_of_a_run_are_the_forms_that_it_keeps():
    """Computed by hand for a bf16 model of 1 GB that keeps five versions, every fifth as a file."""
    rules = RUN.shardcast.model_copy(update={"versions_kept": 5, "full_every": 5})
    model = RUN.model.model_copy(update={"dtype": "bf16"})
    needs = needs_of(RUN.model_copy(update={"shardcast": rules, "model": model}), 5 * 10**8)
    assert needs.version_bytes == 10**9
    patches = 5 * 0.05
    assert math.isclose(needs.blob_bytes, (1 + 1 + 0.9 + patches) * 1e9)
    assert math.isclose(needs.trainer_blob_bytes, (5 + 1 + 0.9 + patches) * 1e9)
    assert needs.blobs_of((Role.RELAY, Role.VALIDATOR)) == needs.blob_bytes
    assert needs.blobs_of((Role.TRAINER, Role.RELAY)) == needs.trainer_blob_bytes


@pytest.mark.parametrize(
    ("encoding", "difference_bytes"), [("int8", 1_015_625_000), ("float32", 4e9)]
)
@pytest.mark.parametrize("state_every", [1, 4])
def test_a_trainer_keeps_the_differences_since_the_older_state(
    encoding, difference_bytes, state_every
):
    run = run_manifest(trainers=3, shardcast={"state_every": state_every})
    grpo = run.grpo.model_copy(update={"outer": OuterSection(trainers=2, encoding=encoding)})
    before, needs = (
        needs_of(run.model_copy(update={"grpo": one}), 10**9) for one in (run.grpo, grpo)
    )
    momenta = 2 * 4 * 10**9
    differences = (2 * state_every + 1) * 2 * difference_bytes
    assert needs.trainer_blob_bytes == before.trainer_blob_bytes + momenta + differences
    assert needs.trainer_disk_bytes == before.trainer_disk_bytes + 2 * (momenta + differences)
    assert needs.disk_bytes == before.disk_bytes
    assert needs.blob_bytes == before.blob_bytes


def test_devices_share_what_a_trainer_keeps_and_hold_the_rest_whole():
    """Computed by hand for the recipe of 32 billion weights."""
    model = read_recipe("intellect2").model
    needs = estimate(RUN.model_copy(update={"model": model}))
    shared = 20 * needs.weights
    layer = 5120 * (2 * 5120 + 2 * 1024) + 5120 + 2 * 1024 + 3 * 5120 * 27_648 + 2 * 5120
    whole = 8 * 2 * 152_064 * 5120 + (2 * 2 + 4) * layer
    alone = needs.rank_bytes[1] - shared
    assert needs.rank_bytes[1] == needs.trainer_bytes
    assert {ranks: size - shared // ranks - alone for ranks, size in needs.rank_bytes.items()} == {
        1: 0, 2: whole, 4: whole, 8: whole, 16: whole
    }  # fmt: skip


@pytest.fixture
def datadir(tmp_path):
    return open_data_dir(tmp_path / "data")


def config(datadir, role, **values):
    return NodeConfig(data_dir=datadir.root, roles=str(role), **values)


@pytest.mark.parametrize("role", [Role.INFERENCE, Role.TRAINER])
def test_a_quota_that_is_too_small_is_refused_with_the_need(datadir, role):
    needed = estimate(RUN).blobs_of((role,))
    require_room(RUN, config(datadir, role), datadir)
    require_room(RUN, config(datadir, role, blob_quota=needed), datadir)
    with pytest.raises(
        NodeError, match=r"--blob-quota .* too small .* it needs [0-9.]+ .B"
    ) as caught:
        require_room(RUN, config(datadir, role, blob_quota=needed - 1), datadir)
    assert caught.value.exit_code is ExitCode.CONFIG


def test_a_disk_that_is_too_small_is_refused_and_what_is_here_counts(datadir, monkeypatch):
    needed = estimate(RUN).disk_bytes
    free = shutil.disk_usage(datadir.root)._replace(free=needed - 8192)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: free)
    with pytest.raises(NodeError, match=r"free at .* needs .* more there") as caught:
        require_room(RUN, config(datadir, Role.INFERENCE), datadir)
    assert caught.value.exit_code is ExitCode.CONFIG
    datadir.weights.mkdir()
    (datadir.weights / "1.safetensors").write_bytes(bytes(16384))
    require_room(RUN, config(datadir, Role.INFERENCE), datadir)

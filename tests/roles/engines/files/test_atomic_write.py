"""Atomic writes of engine files: complete or unchanged, also on full disks."""

import errno

import pytest
import torch
from safetensors.torch import load_file

from roles.engines.architectures.configuration import configuration
from roles.engines.architectures.model import build_model, shapes_of, tensors_of
from roles.engines.files import atomic_write as files
from roles.engines.files.atomic_write import replacing
from roles.engines.files.policy import digest_of, read_policy, write_policy
from roles.engines.training import shared_files
from roles.engines.training.engine import TorchTrainingEngine
from roles.ports.storage import StorageFullError
from tests.roles.engines.tiny import CONFIG, grpo, model, sampling
from tests.roles.engines.training.batches import batch_of
from tests.worlds.power_loss import power_loss
from tests.worlds.small_disk import small_disk

LEFT_BYTES = [0, 4096, 100_000]
"""Room for nothing, for a header, and for a part of the tensors."""


@pytest.fixture
def disk(tmp_path):
    with small_disk(tmp_path / "disk", 6_000_000) as disk:
        yield disk


@pytest.fixture
async def engine(policies):
    made = TorchTrainingEngine(model(), sampling(), grpo())
    await made.load_policy(policies[0])
    yield made
    made.close()


# A really full disk


@pytest.mark.parametrize("left_bytes", LEFT_BYTES)
async def test_a_trainer_is_told_that_its_weights_do_not_fit(disk, engine, policies, left_bytes):
    path = disk.path / "v1.safetensors"
    before = await engine.write_policy(path)
    await engine.step(batch_of())
    disk.fill(left_bytes)
    with pytest.raises(StorageFullError):
        await engine.write_policy(path)
    assert disk.names() == [path.name]
    assert digest_of(load_file(path)) == before == policies[0].digest
    disk.empty()
    after = await engine.write_policy(path)
    assert digest_of(load_file(path)) == after != before


@pytest.mark.parametrize("left_bytes", LEFT_BYTES)
async def test_a_trainer_is_told_that_its_state_does_not_fit(disk, engine, left_bytes):
    path = disk.path / "v1.state"
    await engine.step(batch_of())
    digest = await engine.write_policy(disk.path / "v1.safetensors")
    await engine.save_state(path)
    await engine.step(batch_of(1))
    disk.fill(left_bytes)
    with pytest.raises(StorageFullError):
        await engine.save_state(path)
    assert disk.names() == ["v1.safetensors", path.name]
    await engine.load_state(path, digest)
    disk.empty()
    await engine.step(batch_of(1))
    await engine.save_state(path)
    await engine.load_state(path, await engine.write_policy(disk.path / "v2.safetensors"))


@pytest.mark.parametrize("left_bytes", LEFT_BYTES)
def test_a_policy_that_does_not_fit_leaves_nothing(disk, left_bytes):
    torch.manual_seed(0)
    tensors = tensors_of(build_model(configuration("qwen2", CONFIG), torch.float32, "cpu"))
    path = disk.path / "policy"
    disk.fill(left_bytes)
    with pytest.raises(StorageFullError):
        write_policy(tensors, path)
    assert disk.names() == []
    disk.empty()
    assert read_policy(path, write_policy(tensors, path), shapes_of(configuration("qwen2", CONFIG)))


def test_torch_too_is_understood_when_it_is_given_an_open_file(disk):
    """Torch hides the error behind one of its own, as any writer may."""
    disk.fill(100_000)
    path = disk.path / "state"
    with (
        pytest.raises(StorageFullError),
        replacing(path) as partial,
        partial.open("wb") as file,
    ):
        torch.save({"x": torch.zeros(500_000)}, file)
    assert disk.names() == []


# Any disk


@pytest.mark.parametrize("write", ["weights", "state"])
async def test_what_a_full_disk_says_is_understood(tmp_path, engine, monkeypatch, write):
    """The messages of a full tmpfs, for machines without mount permission."""

    def full(path, _tensors, *_dtype, **_metadata):
        path.write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(shared_files, "write_tensors", full)
    path = tmp_path / "file"
    with pytest.raises(StorageFullError):
        await (engine.write_policy(path) if write == "weights" else engine.save_state(path))
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_replaced_at_the_end(tmp_path):
    path = tmp_path / "file"
    path.write_text("before")
    with replacing(path) as partial:
        partial.write_text("after")
        assert path.read_text() == "before"
    assert path.read_text() == "after"
    assert [item.name for item in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_other_errors_pass_as_they_are(tmp_path, error):
    path = tmp_path / "file"
    path.write_text("before")

    def fail():
        with replacing(path) as partial:
            partial.write_text("half")
            raise error

    with pytest.raises(error):
        fail()
    assert [item.name for item in tmp_path.iterdir()] == ["file"]
    assert path.read_text() == "before"


def test_a_disk_that_is_full_at_the_end_is_full_too(tmp_path, monkeypatch):
    """Some file systems report a full disk only when data is written back."""

    def full(_path):
        raise OSError(errno.EDQUOT, "over quota")

    monkeypatch.setattr(files, "_sync", full)
    with pytest.raises(StorageFullError), replacing(tmp_path / "file") as partial:
        partial.write_text("all")
    assert list(tmp_path.iterdir()) == []


# Power failure


@pytest.mark.parametrize("write", ["weights", "state"])
async def test_a_file_survives_a_power_loss_and_is_old_or_new_before(tmp_path, engine, write):
    root = tmp_path / "disk"
    root.mkdir()
    path = root / "file"
    save = engine.write_policy if write == "weights" else engine.save_state
    with power_loss(root) as power:
        await engine.step(batch_of())
        await save(path)
        before = path.read_bytes()
        assert power.files() == {"file": before}
        power.on_sync.clear()
        await engine.step(batch_of(1))
        await save(path)
        after = path.read_bytes()
        assert after != before
        assert {files["file"] for files in power.on_sync} == {before, after}
        assert power.files()["file"] == after


@pytest.mark.parametrize("write", ["weights", "state"])
async def test_a_crash_while_it_is_written_leaves_the_old_file(
    tmp_path, engine, monkeypatch, write
):
    path = tmp_path / "file"
    save = engine.write_policy if write == "weights" else engine.save_state
    await engine.step(batch_of())
    await save(path)
    before = path.read_bytes()

    def crash(path, _tensors, *_dtype, **_metadata):
        path.write_bytes(b"half")
        assert (tmp_path / "file").read_bytes() == before
        raise KeyboardInterrupt

    monkeypatch.setattr(shared_files, "write_tensors", crash)
    engine._compute = inline
    with pytest.raises(KeyboardInterrupt):
        await save(path)
    assert path.read_bytes() == before


async def inline(function, *arguments):
    return function(*arguments)

"""Own safetensors files, read by the reference library."""

import json
import weakref

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from roles.engines.files import safetensors
from roles.engines.files.policy import digest_of, write_policy
from roles.engines.files.safetensors import write_tensors

MIXED = {
    "odd": torch.arange(3).to(torch.bfloat16),
    "long": torch.randn(5, 3),
    "empty": torch.zeros(0, 4),
    "one": torch.tensor(7.0),
    "across": torch.randn(4, 6).t(),
    "half": torch.randn(3).to(torch.float16),
}


def same(one, other):
    return one.dtype == other.dtype and one.shape == other.shape and bool((one == other).all())


def test_the_library_reads_what_we_write(tmp_path):
    write_tensors(tmp_path / "f", MIXED, metadata={"format": "2", "said": "ö"})
    found = load_file(tmp_path / "f")
    assert found.keys() == MIXED.keys()
    assert all(same(found[name], tensor) for name, tensor in MIXED.items())
    with safe_open(tmp_path / "f", framework="pt") as file:
        assert file.metadata() == {"format": "2", "said": "ö"}


def test_every_number_begins_where_a_machine_reads_it_at_once(tmp_path):
    write_tensors(tmp_path / "f", MIXED)
    data = (tmp_path / "f").read_bytes()
    length = int.from_bytes(data[:8], "little")
    assert length % 8 == 0
    for name, place in json.loads(data[8 : 8 + length]).items():
        assert place["data_offsets"][0] % MIXED[name].itemsize == 0


def test_the_digest_is_that_of_what_is_in_the_file(tmp_path):
    digest = write_policy(MIXED, tmp_path / "f", torch.bfloat16)
    found = load_file(tmp_path / "f")
    assert {tensor.dtype for tensor in found.values()} == {torch.bfloat16}
    assert digest_of(found) == digest != digest_of(MIXED)
    rounded = {name: tensor.to(torch.bfloat16) for name, tensor in MIXED.items()}
    assert digest == digest_of(rounded)
    assert all(same(found[name], tensor) for name, tensor in rounded.items())


def test_tensors_that_take_no_memory_are_written_out(tmp_path):
    zero = torch.zeros(()).expand(7, 5)
    write_tensors(tmp_path / "f", {"x": zero})
    assert same(load_file(tmp_path / "f")["x"], torch.zeros(7, 5))
    assert digest_of({"x": zero}) == digest_of({"x": torch.zeros(7, 5)})


@pytest.mark.parametrize("threads", [1, 3])
def test_every_thread_holds_one_rounded_piece(tmp_path, monkeypatch, threads):
    rounded, most = [], 0
    pieces = safetensors.pieces

    def watched(tensor, dtype=None):
        nonlocal most
        for piece in pieces(tensor, dtype):
            rounded.append(weakref.ref(piece))
            most = max(most, sum(one() is not None for one in rounded))
            assert len(piece) <= 3 * 2
            yield piece
            del piece

    monkeypatch.setattr(safetensors, "pieces", watched)
    monkeypatch.setattr(safetensors, "PIECE_ELEMENTS", 3)
    monkeypatch.setattr(safetensors, "THREADS", threads)
    weights = {str(number): torch.randn(10) for number in range(20)}
    digest = write_policy(weights, tmp_path / "f", torch.bfloat16)
    assert len(rounded) == 4 * len(weights)
    assert most <= 2 * threads, "one that is hashed while the next one is made"
    assert digest_of(load_file(tmp_path / "f")) == digest


def test_several_threads_write_the_same_file(tmp_path, monkeypatch):
    weights = {str(number): torch.randn(7, number) for number in range(40)}
    for threads in (1, 5):
        monkeypatch.setattr(safetensors, "THREADS", threads)
        write_tensors(tmp_path / str(threads), weights)
    assert (tmp_path / "1").read_bytes() == (tmp_path / "5").read_bytes()


def test_what_no_policy_holds_is_not_written(tmp_path):
    with pytest.raises(ValueError, match="float64"):
        write_policy({"x": torch.zeros(2).double()}, tmp_path / "f")
    assert not list(tmp_path.iterdir())

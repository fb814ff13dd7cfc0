"""Equality of encodings by several threads and by one."""

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from node.storage import encodings
from protocol.core.types import Version
from protocol.shardcast.encodings.tensor_file import EncodingError
from roles.ports.engines import Policy
from tests.worlds.tensor_files import file_of, policy_of

OLD = {"a": np.arange(1_500_000, dtype="<u2"), "b": np.ones(700_000, "<u4")}
NEW = {name: words + (np.arange(len(words)) % 97 == 0) for name, words in OLD.items()}
NEW = {name: words.astype(OLD[name].dtype) for name, words in NEW.items()}


class SlowPool(ThreadPoolExecutor):
    """Starts each task with a delay, and records it."""

    def __init__(self, threads):
        super().__init__(threads)
        self.given = []

    def submit(self, function, item):
        def later():
            time.sleep(0.01)
            return function(item)

        self.given.append(super().submit(later))
        return self.given[-1]


@pytest.fixture(params=[1, 2, 5])
def threads(request, monkeypatch):
    monkeypatch.setattr(encodings, "THREADS", request.param)
    with SlowPool(request.param) as pool:
        monkeypatch.setattr(encodings, "_pool", lambda: pool)
        yield pool


@pytest.fixture
def policies(tmp_path):
    made = []
    for version, tensors in enumerate((OLD, NEW)):
        path = tmp_path / f"v{version}"
        path.write_bytes(file_of(tensors))
        made.append(Policy(Version(version), policy_of(tensors), path))
    return made


def decoded(data, base, path, piece_bytes=10_000):
    decoding = encodings.DecodingFile(base, path, 1 << 30)
    try:
        for start in range(0, len(data), piece_bytes):
            decoding.feed(data[start : start + piece_bytes])
        return decoding.finish()
    finally:
        decoding.close()


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("patch", [True, False])
def test_every_number_of_threads_makes_the_same(policies, tmp_path, monkeypatch, patch):
    base, new = policies
    against, path = base if patch else None, tmp_path / "encoding"
    encodings.encode(new.path, against, path)
    with monkeypatch.context() as alone:
        alone.setattr(encodings, "THREADS", 1)
        encodings.encode(new.path, against, tmp_path / "alone")
    data = path.read_bytes()
    assert data == (tmp_path / "alone").read_bytes()
    assert decoded(data, against, tmp_path / "made") == new.digest
    assert (tmp_path / "made").read_bytes() == new.path.read_bytes()


def test_what_cannot_be_decoded_shows_and_leaves_nothing_at_work(policies, tmp_path, threads):
    """Else a block would be read from a closed file, or from the next opened one."""
    base, new = policies
    encodings.encode(new.path, base, tmp_path / "encoding")
    data = bytearray((tmp_path / "encoding").read_bytes())
    data[len(data) // 2 : len(data) // 2 + 200] = b"\xff" * 200
    with pytest.raises(EncodingError):
        decoded(bytes(data), base, tmp_path / "made", piece_bytes=len(data))
    assert all(one.done() for one in threads.given)

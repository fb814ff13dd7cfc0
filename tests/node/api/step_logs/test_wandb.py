"""Files of an offline run as read by W&B's own reader."""

import json
import struct

import pytest

from node.api.step_logs.wandb import WeightsAndBiases
from tests.worlds.network import eventually

pytest.importorskip("wandb", reason="needs wandb: pip install '.[wandb]'")

pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.slow]
HEADER_BYTES = 7
BLOCK_BYTES = 32 * 1024
CHUNK = struct.Struct("<IHB")
WHOLE, LAST = 1, 4
ABOUT = {"run_id": "5f" * 32}


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    for name in ("WANDB_MODE", "WANDB_API_KEY", "WANDB_PROJECT"):
        monkeypatch.delenv(name, raising=False)


def write(directory, steps):
    log = WeightsAndBiases(directory, "5f5f-peer", ABOUT)
    version = log.open()
    missing = [step for step in steps if step.version > version]
    if missing:
        log.write(missing)
    log.close()
    return version


def records(path):
    """Yield the records of a W&B file: LevelDB's log format behind a header of 7 bytes.

    Blocks have 32 KiB. A chunk in them has a checksum, its length and its type: whole, first,
    middle or last. The library writes this format and no longer has a reader in Python.
    """
    from wandb.proto.wandb_internal_pb2 import Record  # noqa: PLC0415 - an extra

    data, at, parts = path.read_bytes(), HEADER_BYTES, b""
    assert data.startswith(b":W&B")
    while at + CHUNK.size <= len(data):
        if BLOCK_BYTES - at % BLOCK_BYTES < CHUNK.size:
            at += BLOCK_BYTES - at % BLOCK_BYTES
            continue
        _, length, kind = CHUNK.unpack_from(data, at)
        at += CHUNK.size
        parts += data[at : at + length]
        at += length
        if kind in {WHOLE, LAST}:
            yield Record.FromString(parts)
            parts = b""


def read(directory):
    """Return (ids of the runs, each history row as its values)."""
    runs, rows = set(), []
    for path in sorted(directory.glob("wandb/offline-run-*/run-*.wandb")):
        for record in records(path):
            if record.WhichOneof("record_type") == "run":
                runs.add((record.run.run_id, record.run.project))
            elif record.WhichOneof("record_type") == "history":
                items = record.history.item
                rows.append(
                    {
                        (one.key or "/".join(one.nested_key)): json.loads(one.value_json)
                        for one in items
                    }
                )
    return runs, rows


def expected(steps):
    return [
        {f"training/{name}": value for name, value in step.statistics.items()}
        | {"_step": step.version, "_timestamp": step.ended_at}
        for step in steps
    ]


async def test_an_offline_run_has_each_step_once_over_restarts(tmp_path, steps):
    assert write(tmp_path, steps[:4]) == 0
    assert write(tmp_path, steps) == 4
    assert write(tmp_path, steps) == 6
    assert len(list(tmp_path.glob("wandb/offline-run-*"))) == 2
    # Its own process writes the file, a moment after a run has ended.
    await eventually(lambda: len(read(tmp_path)[1]) == len(steps))
    runs, rows = read(tmp_path)
    assert runs == {("5f5f-peer", "prime-node")}
    told = [{key: row[key] for key in row if key != "_runtime"} for row in rows]
    assert told == expected(steps)

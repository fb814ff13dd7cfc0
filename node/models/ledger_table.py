"""Parquet table of an exported ledger: one row for each decided rollout and each final version."""

from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from node.local.errors import ExitCode, NodeError
from node.models.ledger import HeldLedger
from protocol.ledger.final_ledger import CountedPage

ROWS_AT_ONCE = 65_536
"""Rows of one row group: 10 MB."""


def write_table(ledger: HeldLedger, out: Path) -> int:
    """Write the rows, oldest first, and return their number; raises ``NodeError``.

    Columns: ``kind`` ("rollout" or "version"), ``epoch`` and ``page`` of the final page, ``id``
    (digest of the commit or of the version's manifest), ``key`` (the worker or the trainer),
    ``version``, ``slot`` (null for a version), ``tokens`` (generated, or learned from), ``reason``
    ("accepted", or that of the rejection; null for a version), ``others`` (the checkers, or the
    workers that the version learned from), ``partners`` (the trainers that made the version with
    ``key``, and have equal shares of its credit; null for a rollout).
    """
    try:
        import pyarrow as pa  # noqa: PLC0415 - only for this format
        from pyarrow.parquet import ParquetWriter  # noqa: PLC0415 - as above
    except ImportError:
        raise NodeError(
            "parquet needs pyarrow: pip install pyarrow, or use --format json", ExitCode.CONFIG
        ) from None
    text, number = pa.string(), pa.int64()
    schema = pa.schema(
        [
            ("kind", text),
            ("epoch", number),
            ("page", text),
            ("id", text),
            ("key", text),
            ("version", number),
            ("slot", number),
            ("evaluation", pa.bool_()),
            ("tokens", number),
            ("reason", text),
            ("others", pa.list_(text)),
            ("partners", pa.list_(text)),
        ],
        metadata={"run_id": ledger.held.manifest.run_id.hex()},
    )
    rows, count = _rows(ledger.pages()), 0
    with ParquetWriter(out, schema, compression="zstd") as writer:
        while part := list(islice(rows, ROWS_AT_ONCE)):
            writer.write_table(pa.Table.from_pylist(part, schema))
            count += len(part)
    return count


def _rows(pages: Iterable[CountedPage]) -> Iterator[dict[str, Any]]:
    for counted in pages:
        work = HeldLedger.work(counted)
        place = {"epoch": counted.page.message.epoch, "page": counted.page.digest.hex()}
        for receipt in work.receipts:
            yield {
                **place,
                "kind": "rollout",
                "id": receipt.commit.hex(),
                "key": receipt.worker,
                "version": receipt.version,
                "slot": receipt.slot,
                "evaluation": receipt.evaluation,
                "tokens": receipt.tokens,
                "reason": receipt.reason,
                "others": list(receipt.checkers),
            }
        for step in work.steps:
            yield {
                **place,
                "kind": "version",
                "id": step.manifest.hex(),
                "key": step.trainer,
                "version": step.version,
                "tokens": sum(tokens for _, _, tokens in step.learned),
                "others": [peer for peer, _, _ in step.learned],
                "partners": list(step.partners),
            }

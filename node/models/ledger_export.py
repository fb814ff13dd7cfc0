"""Export of the ledger: everything that shows the accounts of a run, for a check without a node.

``prime_node/verify_ledger.py`` checks it with its own code. The format is JSON Lines in UTF-8,
bytes as base64, each line as ``json.dumps`` writes it:

- ``{"format", "manifest", "start", "start_page"}``: the canonical manifest, whose digest is the run
  id; the leaves of the accounts before the pages of the export, and the page that they follow;
  null and empty if the export begins with the first page of the run;
- ``{"handover": [...]}`` for each council after the genesis, in order: its notarised pages, as in
  ``PageTree.handovers``;
- ``{"newest": [...]}``: the notarised pages that show the newest final page; missing if that page
  seats a council, which its handover shows;
- ``{"proof"}`` instead of pages: one account and its path to the root of all;
- ``{"page", "work"}`` for each final page, oldest first, up to the newest: its envelope and its
  encoded work (``protocol.ledger.receipts``), empty for none.
"""

import json
from base64 import b64encode
from collections.abc import Iterable, Sequence
from typing import Any, BinaryIO

from protocol.consensus.council import NotarisedPage
from protocol.ledger.account_leaves import decode_header
from protocol.ledger.accounts import AccountProof

FORMAT = "prime-node-ledger/1"


def write_export(
    stream: BinaryIO,
    manifest: bytes,
    start: Sequence[bytes] | None,
    handovers: Iterable[Sequence[NotarisedPage]],
    newest: Sequence[NotarisedPage],
    pages: Iterable[tuple[bytes, bytes]],
) -> None:
    """Write an export, line by line.

    ``manifest`` is the canonical manifest and ``start`` the leaves of the accounts before the first
    of ``pages``, which are pairs of an envelope and of encoded work. A later page of the export
    must state the root of ``start``. Raises ``ValueError`` if ``start`` does not begin with the
    header of accounts after a page.
    """
    start_page = b""
    if start is not None:
        header = decode_header(start[0]) if start else None
        if header is None or not header.page:
            raise ValueError("start: not the leaves of accounts after a page")
        start_page = header.page
    leaves = None if start is None else [_text(leaf) for leaf in start]
    first = {"format": FORMAT, "manifest": _text(manifest), "start": leaves}
    _write(stream, {**first, "start_page": _text(start_page)})
    for handover in handovers:
        _write(stream, {"handover": [_text(page.encoded()) for page in handover]})
    if newest:
        _write(stream, {"newest": [_text(page.encoded()) for page in newest]})
    for envelope, work in pages:
        _write(stream, {"page": _text(envelope), "work": _text(work)})


def write_proof(
    stream: BinaryIO,
    manifest: bytes,
    handovers: Iterable[Sequence[NotarisedPage]],
    newest: Sequence[NotarisedPage],
    proof: AccountProof,
) -> None:
    """Write a proof of an account of which a final page in ``newest`` states the root."""
    write_export(stream, manifest, None, handovers, newest, ())
    values = {
        "account": _text(proof.account),
        "account_path": [_text(one) for one in proof.account_path],
        "header": _text(proof.header),
        "header_path": [_text(one) for one in proof.header_path],
        "place": proof.place,
        "size": proof.size,
    }
    _write(stream, {"proof": values})


def _write(stream: BinaryIO, line: dict[str, Any]) -> None:
    stream.write(json.dumps(line).encode() + b"\n")


def _text(data: bytes) -> str:
    return b64encode(data).decode()

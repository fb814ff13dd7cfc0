"""Cost of verifying an exported ledger, by number of rollouts.

    python benchmarks/ledger/verify.py --json

Writes the export of a run whose pages decide ``--receipts`` rollouts of ``--workers`` workers, each
checked by three members of the council. Then it runs ``prime_node/verify_ledger.py`` on it in a
process of its own, which must compute the same accounts.

Fields of a row:

- ``receipts``, ``pages``, ``workers``: size of the run;
- ``export_mb``: size of the file, in 10^6 bytes;
- ``apply_s``: wall seconds in which a node counts the same pages (``protocol.ledger.accounts``);
- ``restore_s``: wall seconds in which a node restores the accounts from their leaves;
- ``verify_s``, ``verify_cpu_s``, ``verify_peak_mb``: wall and CPU seconds, and largest resident
  memory in 10^6 bytes, of the verifier.
"""

import argparse
import json
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from node.models.ledger_export import write_export
from protocol.consensus.council import Council, NotarisedPage, vote_for
from protocol.core.codec import encode
from protocol.core.crypto import Identity, digest, peer_id_from_public_key
from protocol.core.rng import Rng
from protocol.core.types import PeerId, RunId
from protocol.core.vrf import PROOF_BYTES
from protocol.ledger.accounts import Accounts, CreditRules
from protocol.ledger.receipts import PageWork, Receipt, Step
from protocol.messages import Page, Signed, seal
from protocol.run.manifest import Genesis, RunManifest
from protocol.run.toml import load_recipe

ROOT = Path(__file__).parents[2]
RECIPE = ROOT / "configs" / "runs" / "testnet.toml"
SCRIPT = ROOT / "prime_node" / "verify_ledger.py"
MEMBERS, CHECKERS, TOKENS_MAX = 15, 3, 4096
CREDIT = {
    "per_token": 1000,
    "per_checked_token": 100,
    "per_learned_token": 10,
    "lock_epochs": 1440,
    "gap_max": 64,
    "slash": True,
}


def manifest_bytes(validators: tuple[PeerId, ...]) -> bytes:
    """Return the canonical manifest of a run with some validators."""
    genesis = Genesis(
        creator=validators[0],
        created_at=1_700_000_000,
        policy=digest(b"policy").hex(),
        trainers=validators[:1],
        validators=validators,
    )
    recipe = load_recipe(RECIPE.read_text())
    values = RunManifest(**{**dict(recipe), "genesis": genesis}).model_dump(mode="json")
    return encode({**values, "credit": CREDIT})


@dataclass
class History:
    """Pages of one council, each with the work that it decides."""

    workers: int
    receipts: int
    """Receipts of a page."""
    pages: int
    keys: dict[PeerId, Identity] = field(init=False)
    accounts: Accounts = field(init=False)
    newest: list[NotarisedPage] = field(init=False)
    apply_s: float = 0.0

    def __post_init__(self) -> None:
        keys = [Identity(digest(b"member %d" % number)) for number in range(MEMBERS)]
        self.keys = {key.peer_id: key for key in sorted(keys, key=lambda key: key.peer_id)}
        self.manifest = manifest_bytes(tuple(self.keys))
        self.run_id = RunId(digest(self.manifest))
        era_epochs = RunManifest.model_fields["council"].get_default(call_default_factory=True)
        self.accounts = Accounts(CreditRules(**CREDIT, era_epochs=era_epochs.era_epochs))
        self.newest = []
        self.slots = Counter[PeerId]()

    def work(self, epoch: int, rng: Rng) -> PageWork:
        """Return the work of a page: receipts of random workers, and a version each tenth page."""
        members = list(self.keys)
        receipts = []
        for number in range(self.receipts):
            first = rng.below(MEMBERS - CHECKERS + 1)
            worker = peer_id_from_public_key(digest(b"worker %d" % rng.below(self.workers)))
            receipts.append(
                Receipt(
                    digest(b"commit %d of %d" % (number, epoch)),
                    worker,
                    epoch // 10,
                    self.slots[worker],
                    False,
                    1 + rng.below(TOKENS_MAX),
                    "accepted" if rng.below(50) else "logprobs",
                    tuple(members[first : first + CHECKERS]),
                )
            )
            self.slots[worker] += 1
        learned = {one.worker: one.tokens for one in receipts[:64]}
        shares = tuple((peer, 1, learned[peer]) for peer in sorted(learned))
        step = Step(epoch // 10, digest(b"version %d" % epoch), members[0], shares)
        return PageWork(tuple(receipts), () if epoch % 10 else (step,))

    def export(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield the final pages with their work, and count them; then ``newest`` shows the last."""
        rng, parent, roots = Rng(b"history"), b"", dict[int, bytes]()
        for epoch in range(self.pages + 1):
            work = self.work(epoch, rng) if epoch < self.pages else PageWork()
            page = self._page(epoch, parent, work.digest, roots.get(epoch - 2, b""))
            if epoch >= self.pages - 2:
                self._notarise(page)
            if epoch < self.pages:
                began = time.perf_counter()
                lot = digest(b"beacon %d" % epoch)
                self.accounts.apply(page.digest, epoch, lot, page.message.head, work)
                self.apply_s += time.perf_counter() - began
                if epoch >= self.pages - 3:
                    roots[epoch] = self.accounts.root
                yield page.envelope, work.encoded()
            parent = page.digest

    def _page(self, epoch: int, parent: bytes, work: bytes, ledger: bytes) -> Signed[Page]:
        signer = list(self.keys.values())[epoch % MEMBERS]
        page = Page(
            epoch=epoch,
            council=b"",
            parent=parent,
            seed=digest(b"beacon %d" % (epoch - 1)),
            final_epoch=max(-1, epoch - 2),
            reveals=(bytes(PROOF_BYTES),),
            work=work,
            ledger=ledger,
        )
        return seal(page, self.run_id, signer)

    def _notarise(self, page: Signed[Page]) -> None:
        council, vote = Council(b"", tuple(self.keys)), vote_for(page)
        votes = [seal(vote, self.run_id, key) for key in self.keys.values()]
        self.newest.append(NotarisedPage.of(page, votes[: council.quorum], council))


def written(history: History, path: Path) -> None:
    """Write the export of a history; the newest pages stand before the others."""
    body = path.with_suffix(".body")
    with body.open("wb") as stream:
        write_export(stream, history.manifest, None, [], [], history.export())
    with path.open("wb") as stream, body.open("rb") as lines:
        write_export(stream, history.manifest, None, [], history.newest, [])
        lines.readline()
        while part := lines.read(1 << 20):
            stream.write(part)
    body.unlink()


def measured(receipts: int, pages: int, workers: int, folder: Path) -> dict[str, Any]:
    """Return the row of one run."""
    history = History(workers, receipts // pages, pages)
    path = folder / "ledger.jsonl"
    written(history, path)
    accounts = history.accounts
    leaves = accounts.leaves
    began = time.perf_counter()
    restored = Accounts.restore(leaves, accounts.rules)
    restore_s = time.perf_counter() - began
    assert isinstance(restored, Accounts)
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(path), "--json"], capture_output=True, check=True
    )
    verify_s = time.perf_counter() - began
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    found = json.loads(done.stdout)
    assert found["root"] == accounts.root.hex()
    return {
        "receipts": found["receipts"],
        "pages": found["pages"],
        "workers": workers,
        "export_mb": round(path.stat().st_size / 1e6, 1),
        "apply_s": round(history.apply_s, 2),
        "restore_s": round(restore_s, 3),
        "verify_s": round(verify_s, 2),
        "verify_cpu_s": round(used.ru_utime + used.ru_stime, 2),
        "verify_peak_mb": round(used.ru_maxrss * 1024 / 1e6, 1),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--receipts", type=int, default=1_000_000, help="a multiple of --pages")
    parser.add_argument("--pages", type=int, default=5_000, help="at least 3")
    parser.add_argument("--workers", type=int, default=200)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        row = measured(given.receipts, given.pages, given.workers, Path(folder))
    if given.json:
        print(json.dumps({"machine": platform.machine(), "rows": [row]}, indent=2))
        return
    print(", ".join(f"{name} {value}" for name, value in row.items()))


if __name__ == "__main__":
    main()

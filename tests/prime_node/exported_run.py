"""A run with several councils, real signatures and work, and its export."""

import io
import json
from base64 import b64decode, b64encode
from pathlib import Path

from node.models.ledger_export import write_export
from protocol.consensus.council import PageRules, vote_for
from protocol.consensus.pages import PageTree
from protocol.core.codec import encode
from protocol.core.crypto import digest, verify
from protocol.core.rng import Rng
from protocol.ledger.accounts import Accounts, CreditRules
from protocol.ledger.receipts import PageWork, Receipt, Step
from protocol.messages import Page, seal
from protocol.run.manifest import Genesis, RunManifest
from protocol.run.toml import load_recipe
from tests.protocol.consensus.councils import (
    KEYS,
    PEERS,
    drawn_council,
    fast_output,
    fast_proof,
    first_voters,
    key_of,
)

RECIPE = Path(__file__).parents[2] / "configs" / "runs" / "testnet.toml"
A, B, C, D, E, F, G, *_ = PEERS
WORKERS = PEERS[5:]
CREDIT = {
    "per_token": 100,
    "per_checked_token": 7,
    "per_learned_token": 3,
    "lock_epochs": 20,
    "gap_max": 3,
}
COUNCIL = {"recovery_epochs": 10, "era_epochs": 40, "revealers": 4, "seats_max": 12}
KEPT_EPOCHS = 50
SLASHED = {23: "accepted", 24: "computation"}
"""Reasons of the rollouts with which a worker earns credit and loses it."""
REASONS = ("accepted", "accepted", "accepted", "reward", "logprobs")


def manifest_bytes(validators=(D, B, A, C), **sections) -> bytes:
    """Return the canonical manifest of a run with some validators, here not sorted."""
    genesis = Genesis(
        creator=A,
        created_at=1_700_000_000,
        policy=digest(b"policy").hex(),
        trainers=(A,),
        validators=validators,
    )
    recipe = load_recipe(RECIPE.read_text())
    values = RunManifest(**{**dict(recipe), "genesis": genesis}).model_dump(mode="json")
    for name, changes in {"council": COUNCIL, "credit": {**CREDIT, "slash": True}}.items():
        values[name] = {**values[name], **changes}
    return encode({**values, **sections})


class ExportedRun:
    """Pages of one run, as a node follows them, and the accounts after each final one."""

    def __init__(self, manifest: bytes | None = None):
        self.manifest = manifest_bytes() if manifest is None else manifest
        self.run_id = digest(self.manifest)
        era_epochs = COUNCIL["era_epochs"]
        rules = PageRules(self.run_id, COUNCIL["recovery_epochs"], 4, 12, era_epochs)
        self.tree = PageTree([A, B, C, D], rules, verify, fast_output, KEPT_EPOCHS)
        rate = 0.001  # that of a manifest without the key
        credit = CreditRules(
            **CREDIT, slash=True, era_epochs=era_epochs, reward_disagreement_rate=rate
        )
        self.accounts = Accounts(credit)
        self.works: dict[bytes, PageWork] = {}
        self.final = []
        """Final pages, oldest first."""
        self.leaves = {-1: self.accounts.leaves}
        """Leaves after the final page of each epoch."""
        self.roots = {-1: self.accounts.root}

    def extend(self, epoch: int, *, voters=None, work=None, joined=(), removed=(), draw=None):
        """Add the page of an epoch with the votes of a quorum, and return its node."""
        parent = self.tree.tip(epoch)
        changes, rules = joined or removed or draw, self.tree.rules
        if work is None or changes or parent.is_closing:
            work = PageWork()
        revealers = parent.council.revealers(parent.beacon, epoch, rules.revealers)
        alpha = rules.alpha(parent.beacon, epoch)
        page = Page(
            epoch=epoch,
            council=parent.council.seat,
            parent=parent.digest,
            seed=parent.beacon,
            final_epoch=parent.shown_epoch,
            term=parent.term,
            head=parent.head if changes or not work.steps else work.steps[-1].manifest,
            reveals=() if parent.is_closing else tuple(fast_proof(one, alpha) for one in revealers),
            joined=tuple(map(key_of, joined)),
            removed=tuple(map(key_of, removed)),
            **drawn_council(draw or {}),
            certified=tuple(one.commit for one in work.receipts),
            checkers=(0,) * len(work.receipts),
            overturned=tuple(one.receipt.commit for one in work.overturned),
            work=work.digest,
            ledger=b"" if parent.is_closing else self.roots[parent.shown_epoch],
        )
        signer = parent.council.proposer(parent.beacon, epoch)
        signed = seal(page, self.run_id, KEYS[signer])
        assert self.tree.offer_page(signed) is True
        node = self.tree.get(signed.digest)
        self.works[signed.digest] = work
        if voters is None:
            voters = first_voters(node.council, node.council.quorum)
        for peer in voters:
            self.tree.offer_vote(seal(vote_for(signed), self.run_id, KEYS[peer]))
        assert node.is_notarised
        self._follow()
        return node

    def _follow(self):
        for node in self.tree.take_finalised():
            work = self.works[node.digest]
            self.final.append(node)
            head = node.page.message.head
            self.accounts.apply(node.digest, node.epoch, node.beacon, head, work)
            self.leaves[node.epoch] = self.accounts.leaves
            self.roots[node.epoch] = self.accounts.root

    def export(self, start_epoch: int | None = None) -> list[dict]:
        """Return the lines of the export, from the beginning or from a final page on."""
        stream = io.BytesIO()
        since = -1 if start_epoch is None else start_epoch
        pages = [node for node in self.final if node.epoch > since]
        write_export(
            stream,
            self.manifest,
            None if start_epoch is None else self.leaves[start_epoch],
            self.tree.handovers,
            self.tree.newest,
            [(node.page.envelope, self.works[node.digest].encoded()) for node in pages],
        )
        lines = stream.getvalue().decode().split("\n")
        assert lines.pop() == ""
        found = [json.loads(line) for line in lines]
        assert text_of(found) == stream.getvalue()
        return found


def work_of(epoch: int, rng: Rng, trainer: str = A) -> PageWork:
    """Return some receipts, and sometimes a version."""
    receipts = []
    for number in range(rng.below(4)):
        worker = WORKERS[rng.below(len(WORKERS))]
        checkers = {PEERS[rng.below(8)] for _ in range(3)}
        reason = REASONS[rng.below(5)]
        commit = digest(b"commit %d of %d" % (number, epoch))
        tokens = rng.below(200)
        receipts.append(
            Receipt(
                commit,
                worker,
                epoch,
                rng.below(epoch + 2),
                rng.below(4) == 0,
                tokens,
                reason,
                tuple(sorted(checkers)),
            )
        )
    if epoch in SLASHED:
        commit, reason = digest(b"slashed in %d" % epoch), SLASHED[epoch]
        receipts.append(Receipt(commit, WORKERS[0], epoch, 0, True, 150, reason, ()))
    learned = tuple((peer, 1 + rng.below(3), rng.below(99)) for peer in WORKERS[: rng.below(4)])
    partners = tuple(peer for peer in PEERS[: epoch % 4] if peer != trainer)
    one = Step(epoch, digest(b"version %d" % epoch), trainer, learned, rng.below(3), partners)
    steps = (one,) * (epoch % 3 == 0)
    return PageWork(tuple(receipts), steps)


def sample_run() -> ExportedRun:
    """Return a run with a change, a draw and a recovery, each with other proofs of finality."""
    run, rng = ExportedRun(), Rng(b"sample")

    def pages(*epochs, **fields):
        for epoch in epochs:
            run.extend(epoch, work=work_of(epoch, rng), **fields)

    pages(0, 1, 2, 3, 5, 6, 7)
    run.extend(9, joined=(E,), removed=(A,))
    pages(10, 12, 14, 15, 16)
    assert run.tree.council.members == tuple(sorted((B, C, D, E)))
    pages(17, 18, 19, 23, 24, 25, 26, 40)
    run.extend(41, draw={B: 3, F: 2, G: 1})
    pages(42)
    assert run.tree.council.seats_total == 6
    pages(43, 44, 45, 46, 47, 50)
    run.extend(58, removed=(F,), voters=(B, G))
    pages(60, 61, 62, voters=(B, G))
    assert run.tree.council.number == 3
    pages(*range(63, 70), 71, 72, 73)
    return run


def text_of(lines: list[dict]) -> bytes:
    """Return the bytes of an export."""
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


def bytes_of(text: str) -> bytes:
    return b64decode(text)


def base64_of(data: bytes) -> str:
    return b64encode(data).decode()

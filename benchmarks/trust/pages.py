"""Cost of pages: bytes and CPU time of an epoch for one node, by size of the council.

    python benchmarks/trust/pages.py --json

Every member of the council reveals if drawn, and votes; a page lists ``--listed``
new commits and as many certified ones. A node receives each message once, opens it
and offers it to its ``PageIntake``. Bytes are envelopes, without the overhead of gossip. Times are
CPU milliseconds of this process with real keys, medians over the epochs.

Fields of a row:

- ``page_bytes``, ``vote_bytes``, ``reveal_bytes``: one message;
- ``notarised_bytes``: a page with the votes of a quorum, as stored; ``handover_bytes``: the three
  of them that a late joiner fetches for a change of the council;
- ``prove_ms``: make a reveal; ``check_reveal_ms``, ``check_vote_ms``: receive a message;
- ``check_page_ms``: receive a page whose reveals arrived before; ``check_new_page_ms``: none had;
- ``check_handover_ms``: receive a chain of three pages;
- ``epoch_bytes``, ``epoch_ms``: all messages of an epoch;
- ``member_ms``: mean work of a member for its own messages in an epoch.
"""

import argparse
import json
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

from councils import identity, manifest_of

from protocol.consensus.council import NotarisedPage, encode_chain, vote_for
from protocol.core.crypto import Identity, digest, reveal_output, verify
from protocol.core.faults import Fault
from protocol.core.types import PeerId
from protocol.messages import (
    OPENED_MAX,
    Message,
    Opened,
    Page,
    PageVote,
    Reveal,
    Signed,
    open_envelope,
    seal,
)
from protocol.replica.page_intake import PageIntake
from protocol.run.manifest import RunManifest


@dataclass
class EpochMessages:
    """Everything that the council sends in one epoch."""

    page: Signed[Page]
    reveals: list[Signed[Reveal]]
    votes: list[Signed[PageVote]]
    prove_ms: float
    sign_page_ms: float
    sign_vote_ms: float


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """Return the CPU milliseconds of a call, and its result."""
    began = time.process_time()
    found = work()
    return (time.process_time() - began) * 1e3, found


class Writer:
    """A council with every key at hand."""

    def __init__(self, manifest: RunManifest, listed: int) -> None:
        self._manifest, self._listed = manifest, listed
        count = len(manifest.genesis.validators)
        keys = [identity(f"member {number}") for number in range(count)]
        self._keys: dict[PeerId, Identity] = {key.peer_id: key for key in keys}
        # Its own proofs and votes need no check.
        self._intake = PageIntake(manifest, lambda *_: True, reveal_output, Opened(OPENED_MAX))

    def write(self, epoch: int) -> EpochMessages:
        """Return the messages of the next epoch."""
        tree, run_id = self._intake.tree, self._manifest.run_id
        tip = tree.tip()
        assert tip is not None
        alpha, proving, reveals = tree.rules.alpha(tip.beacon, epoch), [], []
        for peer in self._intake.reveals.expected(tip, epoch):
            took, proof = timed(partial(self._keys[peer].prove, alpha))
            proving.append(took)
            reveal = Reveal(epoch=epoch, parent=tip.digest, proof=proof)
            reveals.append(seal(reveal, run_id, self._keys[peer]))
        unsigned = Page(
            epoch=epoch,
            council=tip.council.seat,
            parent=tip.digest,
            seed=tip.beacon,
            final_epoch=tip.shown_epoch,
            term=tip.term,
            head=tip.head,
            reveals=tuple(reveal.message.proof for reveal in reveals),
            commits=tuple(digest(b"%d" % number) for number in range(self._listed)),
            certified=tuple(digest(b"-%d" % number) for number in range(self._listed)),
            checkers=(7,) * self._listed,
            work=digest(b"work"),
            ledger=digest(b"accounts"),
        )
        proposer = self._keys[tip.council.proposer(tip.beacon, epoch)]
        sign_page_ms, page = timed(lambda: seal(unsigned, run_id, proposer))
        vote = vote_for(page)
        sign_votes_ms, votes = timed(
            lambda: [seal(vote, run_id, key) for key in self._keys.values()]
        )
        accepted = [tree.offer_page(page), *(tree.offer_vote(vote) for vote in votes)]
        assert all(one is True for one in accepted), accepted
        sign_vote_ms = sign_votes_ms / len(votes)
        return EpochMessages(page, reveals, votes, median(proving), sign_page_ms, sign_vote_ms)

    def notarised(self, page: Signed[Page]) -> NotarisedPage:
        """Return a page of the last epochs with the votes of a quorum."""
        node = self._intake.tree.get(page.digest)
        assert node is not None
        assert node.proof is not None
        return node.proof


class Reader:
    """A node that receives messages in their epoch."""

    def __init__(self, manifest: RunManifest) -> None:
        self._manifest, self._opened = manifest, Opened(OPENED_MAX)
        self.intake = PageIntake(manifest, verify, reveal_output, self._opened)

    def receive(self, message: Signed[Any], share: float = 0.1) -> float:
        """Return the CPU milliseconds that a message takes; it must be accepted."""
        kind: type[Message] = type(message.message)
        run_id = self._manifest.run_id
        seconds = self._manifest.epochs.seconds
        now = self._manifest.epoch_start(message.message.epoch) + share * seconds
        offers: dict[type[Message], Callable[[Any, float], Fault | bool]] = {
            Page: self.intake.offer_page,
            PageVote: self.intake.offer_vote,
            Reveal: self.intake.offer_reveal,
        }

        def opened_and_offered() -> Fault | bool:
            opened = open_envelope(message.envelope, kind, run_id, verify, self._opened)
            return opened if isinstance(opened, Fault) else offers[kind](opened, now)

        took, accepted = timed(opened_and_offered)
        assert accepted is True, accepted
        return took


def measured(members: int, epochs: int, listed: int) -> dict[str, Any]:
    """Return the row of one council."""
    manifest = manifest_of(members)
    writer, reader = Writer(manifest, listed), Reader(manifest)
    written, times, totals = [], dict[str, list[float]](), []
    notarised: list[NotarisedPage] = []
    for epoch in range(1, epochs + 1):
        messages = writer.write(epoch)
        written.append(messages)
        notarised.append(writer.notarised(messages.page))
        reveal_ms = [reader.receive(one) for one in messages.reveals]
        page_ms = reader.receive(messages.page)
        vote_ms = [reader.receive(one) for one in messages.votes]
        times.setdefault("reveal", []).extend(reveal_ms)
        times.setdefault("page", []).append(page_ms)
        times.setdefault("vote", []).extend(vote_ms)
        totals.append(sum(reveal_ms) + page_ms + sum(vote_ms))
        alone = Reader(manifest)
        if len(notarised) > 1:
            alone.intake.tree.offer_chain(notarised[:-1])
        times.setdefault("new page", []).append(alone.receive(messages.page))
    handover = encode_chain(notarised[-3:])
    for _ in range(epochs):
        joiner = Reader(manifest)
        took, accepted = timed(partial(joiner.intake.offer_chain, handover))
        assert accepted is True, accepted
        times.setdefault("handover", []).append(took)
    found = {name: median(some) for name, some in times.items()}
    last = written[-1]
    prove_ms = median(one.prove_ms for one in written)
    own_ms = median(one.sign_vote_ms for one in written)
    own_ms += prove_ms * len(last.reveals) / members
    own_ms += median(one.sign_page_ms for one in written) / members
    received: list[Signed[Any]] = [last.page, *last.reveals, *last.votes]
    return {
        "council": members,
        "page_bytes": len(last.page.envelope),
        "vote_bytes": len(last.votes[0].envelope),
        "reveal_bytes": len(last.reveals[0].envelope),
        "notarised_bytes": len(notarised[-1].encoded()),
        "handover_bytes": len(handover),
        "prove_ms": round(prove_ms, 3),
        "check_reveal_ms": round(found["reveal"], 3),
        "check_page_ms": round(found["page"], 3),
        "check_new_page_ms": round(found["new page"], 3),
        "check_vote_ms": round(found["vote"], 3),
        "check_handover_ms": round(found["handover"], 3),
        "epoch_bytes": sum(len(one.envelope) for one in received),
        "epoch_ms": round(median(totals), 3),
        "member_ms": round(own_ms, 3),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--councils", type=int, nargs="+", default=[4, 10, 31, 100, 200])
    parser.add_argument("--epochs", type=int, default=7, help="at least 3")
    parser.add_argument(
        "--listed", type=int, default=20, help="new and certified commits of a page"
    )
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    rows = [measured(members, given.epochs, given.listed) for members in given.councils]
    if given.json:
        print(json.dumps({"machine": platform.machine(), "rows": rows}, indent=2))
        return
    for row in rows:
        print(", ".join(f"{name} {value}" for name, value in row.items()))


if __name__ == "__main__":
    main()

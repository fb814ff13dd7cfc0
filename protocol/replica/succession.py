"""Succession of a run whose council is gone: what its final pages leave, and the check of a claim.

The manifest of a successor names the newest final page of its predecessor, the version that this
page makes final, and the totals of the run. Each node that followed the predecessor compares this
claim with its own pages. A node that was away too early, or no longer keeps the page, can confirm
only a part.
"""

from enum import StrEnum
from typing import NamedTuple

from protocol.consensus.page_node import PageNode
from protocol.core.types import Digest
from protocol.replica.replica import Replica
from protocol.run.manifest import Predecessor, RunManifest


class NoSuccession(StrEnum):
    """Reason why a node cannot name a predecessor."""

    NO_PAGE = "no page of the run is final here"
    NO_VERSION = "no final page names a version"
    UNKNOWN_VERSION = "the manifest of the final version is not here"


def predecessor_of(replica: Replica) -> Predecessor | NoSuccession:
    """Return what the newest final page of a replica leaves to a successor.

    The replica has counted its final pages (``PageIntake.count_final``).
    """
    root, lead, chain = replica.pages.root, replica.lead, replica.ledger.chain
    if root.page is None:
        return NoSuccession.NO_PAGE
    if not lead.head:
        return NoSuccession.NO_VERSION
    version = chain.place(lead.head)
    if version is None:
        return NoSuccession.UNKNOWN_VERSION
    accounts = replica.intake.accounts
    return Predecessor(
        run_id=replica.run_id.hex(),
        page=root.digest.hex(),
        epoch=root.epoch,
        head=lead.head.hex(),
        version=version,
        rollouts=accounts.totals.rollouts,
        tokens=accounts.totals.tokens,
        is_complete=accounts.header.page == root.digest,
    )


class ClaimFinding(NamedTuple):
    """Result of one comparison of a claim with the pages of a node."""

    subject: str
    holds: bool | None
    """None if the pages of this node cannot tell."""
    detail: str


def check_succession(successor: RunManifest, replica: Replica) -> list[ClaimFinding]:
    """Compare what a manifest says of its predecessor with a replica of that run.

    The replica has counted its final pages.
    """
    claim = successor.genesis.predecessor
    if claim is None:
        return [ClaimFinding("run", False, "it names no predecessor")]
    if claim.run_id != replica.run_id.hex():
        return [
            ClaimFinding(
                "run", False, f"it succeeds run {claim.run_id}, not {replica.run_id.hex()}"
            )
        ]
    page = _final_page(replica, claim)
    known = page if isinstance(page, PageNode) else None
    return [
        ClaimFinding("run", True, f"it succeeds run {claim.run_id}"),
        _creator(successor, replica.manifest),
        _page(claim, page),
        _newest(claim, replica),
        _version(claim, successor, known, replica),
        _totals(claim, replica),
    ]


def _creator(successor: RunManifest, manifest: RunManifest) -> ClaimFinding:
    if successor.genesis.creator == manifest.genesis.creator:
        return ClaimFinding("creator", True, "the same key created both runs")
    return ClaimFinding("creator", None, "another key created it")


def _final_page(replica: Replica, claim: Predecessor) -> PageNode | bool | None:
    """Return the final page of a claim; False if it is not final, None if that is unknown here."""
    pages, page = replica.pages, bytes.fromhex(claim.page)
    if claim.epoch > pages.root.epoch:
        return None
    node: PageNode | None = pages.root
    while node is not None and node.page is not None:
        if node.digest == page:
            return node if node.epoch == claim.epoch else False
        if node.epoch < claim.epoch:
            return False
        if not node.page.message.parent:
            return False  # the first page of the run
        node = pages.page(node.page.message.parent)
    return None


def _page(claim: Predecessor, page: PageNode | bool | None) -> ClaimFinding:
    where = f"page {claim.page} of epoch {claim.epoch}"
    if isinstance(page, PageNode):
        return ClaimFinding("page", True, f"{where} is final")
    if page is False:
        return ClaimFinding("page", False, f"{where} is not in the final chain")
    return ClaimFinding("page", None, f"{where} is not here")


def _newest(claim: Predecessor, replica: Replica) -> ClaimFinding:
    newest = replica.pages.root.epoch
    if newest > claim.epoch:
        return ClaimFinding("newest page", False, f"the page of epoch {newest} is final too")
    if newest < claim.epoch:
        return ClaimFinding(
            "newest page", None, f"this node knows final pages to epoch {newest} only"
        )
    return ClaimFinding("newest page", True, "no later page is final here")


def _version(
    claim: Predecessor, successor: RunManifest, page: PageNode | None, replica: Replica
) -> ClaimFinding:
    head, chain = bytes.fromhex(claim.head), replica.ledger.chain
    if page is not None and page.head != head:
        return ClaimFinding("version", False, "that page makes another version final")
    version = chain.place(head)
    known = None if version is None else chain.get(version)
    if known is None:
        return ClaimFinding("version", None, f"version {claim.version} is not here")
    if version != claim.version:
        return ClaimFinding("version", False, f"that version has the number {version}")
    if Digest(known.message.policy) != successor.genesis_policy:
        return ClaimFinding("version", False, f"version {version} has another policy")
    if page is None:
        return ClaimFinding(
            "version", None, f"version {version} has that policy; the page is not here"
        )
    return ClaimFinding(
        "version", True, f"that page makes version {version} final, with that policy"
    )


def _totals(claim: Predecessor, replica: Replica) -> ClaimFinding:
    accounts = replica.intake.accounts
    ours = accounts.totals.rollouts, accounts.totals.tokens
    claimed = claim.rollouts, claim.tokens
    numbers = f"{claim.rollouts} rollouts, {claim.tokens} tokens"
    if accounts.header.page.hex() != claim.page:
        return ClaimFinding("totals", None, f"{numbers}: this node counts to another page")
    is_less = all(a <= b for a, b in zip(claimed, ours, strict=True))
    fits = claimed == ours or (not claim.is_complete and is_less)
    return ClaimFinding("totals", fits, f"{numbers}: this node counts {ours[0]} and {ours[1]}")

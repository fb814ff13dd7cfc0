"""Re-examination: a late page draws other members that check some decided commits again.

The page that draws is called ``Q`` in this module. It is the first page that draws committees after
its ancestors show that a page which decides commits is final. Its beacon was unknown when the
certificates were signed, so no committee knew which of its commits are checked again, or by whom.

The lot draws a share of the commits, and every rejection that slashes. The members are those of the
first seats in a ranking by the beacon, without the worker and without the commit's larger
committee. They send nothing if the outcome is right. Otherwise they sign objections: the signatures
of two thirds of the drawn seats form an ``Overturn``. Pages list it and so undo the outcome.
"""

from collections.abc import Container
from dataclasses import dataclass
from fractions import Fraction
from itertools import islice

from protocol.consensus.council import Council
from protocol.consensus.final_commits import PageOf, lineage
from protocol.consensus.page_node import PageNode
from protocol.core.codec import encode
from protocol.core.crypto import Verifier, digest, signing_bytes
from protocol.core.faults import Fault, FaultCode
from protocol.core.types import Digest, PeerId, RunId
from protocol.messages import ACCEPTED, Objection, Overturn, Page
from protocol.rollout.agreement import CERTAIN_REASONS
from protocol.rollout.audit import SLASHABLE_REASONS
from protocol.rollout.fit import REWARD

LOT = b"prime-node/reexamine"

MEMBERS_MIN = 3
"""Members without which nothing is drawn: one or two keys must not overturn a committee."""

AGAINST_ACCEPTANCE = CERTAIN_REASONS | {REWARD}
"""Reasons that overturn an acceptance. On all others two honest validators may differ."""


@dataclass(frozen=True, slots=True)
class Panel:
    """Seats that re-examine one commit, in the order of the ranking."""

    seats: tuple[PeerId, ...]
    quorum: int
    """Seats that overturn the outcome."""

    @property
    def members(self) -> tuple[PeerId, ...]:
        """The drawn members in the order of their first seats."""
        return tuple(dict.fromkeys(self.seats))

    def is_quorum(self, peers: Container[PeerId]) -> bool:
        """Return whether some members overturn the outcome."""
        return sum(peer in peers for peer in self.seats) >= self.quorum


def is_drawn(beacon: bytes, commit: bytes, share: float) -> bool:
    """Return whether the lot of a page draws a commit."""
    drawn = int.from_bytes(digest(LOT + beacon + commit)[:8], "big")
    return drawn < int(Fraction(share) * 2**64)


def panel_of(
    page: PageNode, commit: bytes, worker: PeerId, committee: Container[PeerId], size: int
) -> Panel | None:
    """Return the members that a page draws for a commit; None if the council has too few others.

    ``committee``: the commit's larger committee. A council that fills all ``size`` seats needs two
    thirds of them. In a smaller one, more than a third of all seats must object as well: less than
    a third is dishonest.
    """
    ranked = page.council.ranked_seats(page.beacon + commit + LOT, worker)
    seats = tuple(peer for peer in ranked if peer not in committee)[:size]
    quorum = -(-2 * len(seats) // 3)
    if len(seats) < size:
        quorum = max(quorum, _more_than_a_third(page.council))
    is_enough = len(set(seats)) >= MEMBERS_MIN and quorum <= len(seats)
    return Panel(seats, quorum) if is_enough else None


def _more_than_a_third(council: Council) -> int:
    return council.seats_total // 3 + 1


def newly_shown(page: PageNode, page_of: PageOf) -> list[Page] | None:
    """Return the pages whose commits a page that draws committees may draw again, newest first.

    Its ancestors show them final, and those of the last page before it that drew committees do
    not. None if one of these pages is not here.
    """
    assert page.page is not None
    newest, shown_before = page.page.message.final_epoch, None
    found: list[Page] = []
    for node in islice(lineage(page, page_of), 1, None):
        if node is None or node.page is None:
            return None
        if shown_before is None and node.draws:
            shown_before = node.page.message.final_epoch
        if shown_before is not None and node.epoch <= shown_before:
            break
        if node.epoch <= newest:
            found.append(node.page.message)
    return found


def overturned_before(page: PageNode, page_of: PageOf, epochs: int) -> set[bytes]:
    """Return the commits that a page and those of some epochs before it overturn."""
    found = set[bytes]()
    for node in lineage(page, page_of):
        if node is None or node.page is None or node.epoch <= page.epoch - epochs:
            break
        found |= set(node.page.message.overturned)
    return found


def may_overturn(reason: str, decided: str) -> bool:
    """Return whether an objection of a reason can overturn an outcome with the reason ``decided``.

    ``accepted`` is the reason of an acceptance, and overturns a rejection that slashes.
    """
    if decided == ACCEPTED:
        return reason in AGAINST_ACCEPTANCE
    return reason == ACCEPTED and decided in SLASHABLE_REASONS


def overturn_of(
    objection: Objection, panel: Panel, signatures: dict[PeerId, bytes]
) -> Overturn | None:
    """Return the statement that the objections of members form; None if they are too few."""
    if not panel.is_quorum(signatures):
        return None
    places = [place for place, peer in enumerate(panel.members) if peer in signatures]
    return Overturn(
        commit=objection.commit,
        page=objection.page,
        reason=objection.reason,
        members=sum(1 << place for place in places),
        signatures=tuple(signatures[panel.members[place]] for place in places),
    )


def check_overturn(
    overturn: Overturn, panel: Panel, run_id: RunId, verify: Verifier
) -> Fault | None:
    """Check the members of an overturn and their signatures."""
    if overturn.members >> len(panel.members):
        return Fault(FaultCode.BAD_OVERTURN, "a member that is not drawn")
    named = [peer for place, peer in enumerate(panel.members) if overturn.members >> place & 1]
    if not panel.is_quorum(named):
        return Fault(FaultCode.BAD_OVERTURN, "too few members")
    objection = Objection(commit=overturn.commit, page=overturn.page, reason=overturn.reason)
    signed = signing_bytes(Objection.kind, run_id, encode(objection.model_dump()))
    for peer, signature in zip(named, overturn.signatures, strict=True):
        if not verify(peer, signed, signature):
            return Fault(FaultCode.BAD_OVERTURN, f"a bad signature of {peer}")
    return None


def decision_on(
    commit: Digest, page: PageNode, page_of: PageOf, epochs: int
) -> tuple[Page, int] | None:
    """Return the page that decides a commit, and the place of the commit in it.

    It is ``page`` or one of so many epochs before it; None if no such page is here.
    """
    for node in lineage(page, page_of):
        if node is None or node.page is None or node.epoch <= page.epoch - epochs:
            return None
        if commit in node.page.message.decided:
            return node.page.message, node.page.message.decided.index(commit)
    return None

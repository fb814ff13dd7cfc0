"""Overturned outcomes, recomputed: the page that draws, its lot, its members, their signatures.

An honest worker loses nothing by one, and no honest validator is blamed.
"""

from dataclasses import dataclass
from fractions import Fraction

import msgpack

from simulations.checkers.pages import Pages, TracedPage, ranked
from simulations.checkers.swarm import TracedNode
from simulations.checkers.watch import Watch
from simulations.checkers.wire import Opened, blake3_digest, peer_of, signature_fits
from simulations.runtime.trace import Event

SLASHED_FOR = ("format", "termination", "computation", "history", "reward-history")
CERTAIN = ("format", "termination", "computation")
LEAST_MEMBERS = 3
LOT = b"prime-node/reexamine"


@dataclass(frozen=True, slots=True)
class TracedDecision:
    """A commit with a final outcome."""

    page: TracedPage
    """The page that decides it."""
    worker: bytes
    reason: str
    checkers: tuple[bytes, ...]


class Overturns:
    """Judges every overturn that any node has stored."""

    def __init__(self, watch: Watch, pages: Pages) -> None:
        self._watch, self._pages = watch, pages
        self._seen: dict[bytes, dict[bytes, Opened]] = {}
        """Commit to its overturns by message id."""
        self._drawing: dict[bytes, TracedPage] = {}
        """Commit to the final page that draws its committee."""
        self.blamed: dict[str, int] = {}
        """Validators that an overturned outcome shows to have lied, with the epoch of the page."""
        self.outcomes: list[tuple[bytes, str, int]] = []
        """Overturned commits with the new reason and the epoch of the page."""
        watch.on_message("overturn", self._on_overturn)
        pages.on_final(self._on_final)

    def reasons(self, commit: bytes, decision: TracedDecision, lister: TracedPage) -> list[str]:
        """Return the reasons of the valid overturns of a commit that a page may list."""
        seen = self._seen.get(commit, {}).values()
        valid = [one for one in seen if not self._flaw(one, decision, lister)]
        return sorted({one.fields["reason"] for one in valid})

    def note(self, commit: bytes, decision: TracedDecision, reason: str, epoch: int) -> None:
        """Note that a final page overturns an outcome."""
        self.outcomes.append((commit, reason, epoch))
        swarm = self._watch.swarm
        worker = peer_of(decision.worker)
        if reason != "accepted" and swarm.honest(worker):
            self._report("no-honest-overturned", f"a rollout of {swarm.name(worker)}", commit)
        lie = decision.reason if reason == "accepted" else reason
        for peer in map(peer_of, decision.checkers) if lie in CERTAIN else ():
            self.blamed.setdefault(peer, epoch)
            if swarm.honest(peer):
                self._report("no-honest-blamed", f"verdicts of {swarm.name(peer)}", commit)

    def _report(self, rule: str, what: str, commit: bytes) -> None:
        what = f"a final page overturns {what}, who is honest"
        self._watch.report(rule, "world", what, (commit,))

    # Judgement

    def _flaw(self, overturn: Opened, decision: TracedDecision, lister: TracedPage) -> str:
        """Return why an overturn does not hold; empty if it does."""
        fields = overturn.fields
        page = self._pages.final_page(fields["page"])
        if page is None or not page.draws:
            return "its page is not final, or draws nothing"
        if not page.epoch < lister.epoch <= page.epoch + self._watch.rules.expire_epochs:
            return "it is of another time than the page that lists it"
        before = self._last_draw(page)
        shown = decision.page.epoch <= page.message.fields["final_epoch"]
        if not shown or (before is not None and decision.page.epoch <= before):
            return "another page draws the commit"
        if not self._is_drawn(fields["commit"], page, decision):
            return "the lot does not draw the commit"
        is_acceptance = decision.reason == "accepted"
        possible = (*CERTAIN, "reward") if is_acceptance else ("accepted",)
        slashes = is_acceptance or decision.reason in SLASHED_FOR
        if not slashes or fields["reason"] not in possible:
            return "its reason does not contradict the outcome"
        return self._members_flaw(overturn, page, decision)

    def _last_draw(self, page: TracedPage) -> int | None:
        """Return what the last page that draws, before another one, showed final."""
        one = self._pages.final_page(page.message.fields["parent"])
        while one is not None:
            if one.draws:
                shown: int = one.message.fields["final_epoch"]
                return shown
            one = self._pages.final_page(one.message.fields["parent"])
        return None

    def _is_drawn(self, commit: bytes, page: TracedPage, decision: TracedDecision) -> bool:
        rules = self._watch.rules
        if decision.reason in SLASHED_FOR and rules.credit.slash:
            return True
        hashed = blake3_digest(LOT + page.state.beacon + commit)
        return Fraction(int.from_bytes(hashed[:8], "big"), 2**64) < Fraction(rules.reexamine_share)

    def _members_flaw(self, overturn: Opened, page: TracedPage, decision: TracedDecision) -> str:
        fields, rules = overturn.fields, self._watch.rules
        drawing = self._drawing.get(fields["commit"])
        if drawing is None:
            return "no page draws a committee of the commit"
        worker = peer_of(decision.worker)
        ranking = ranked(drawing.state.beacon + fields["commit"], drawing.members)
        committee = [peer for peer in ranking if peer != worker][: rules.escalated_size]
        seats = ranked(page.state.beacon + fields["commit"] + LOT, page.members)
        seats = [peer for peer in seats if peer != worker and peer not in committee]
        seats = seats[: rules.reexamine_size]
        members = list(dict.fromkeys(seats))
        needed = -(-2 * len(seats) // 3)
        if len(seats) < rules.reexamine_size:
            needed = max(needed, sum(page.members.values()) // 3 + 1)
        signers = [one for n, one in enumerate(members) if fields["members"] >> n & 1]
        if len(members) < LEAST_MEMBERS or fields["members"] >> len(members):
            return "it names members that are not drawn"
        if sum(map(seats.count, signers)) < needed:
            return f"{len(signers)} members do not suffice"
        if not self._watch.real_signatures:
            return ""
        statement = {name: fields[name] for name in ("commit", "page", "reason")}
        signed = self._watch.wire.signed("objection", bytes(msgpack.packb(statement)))
        good = all(map(signature_fits, signers, [signed] * len(signers), fields["signatures"]))
        return "" if good else "a signature is invalid"

    # Messages and pages

    def _on_overturn(self, _event: Event, _member: TracedNode, overturn: Opened) -> None:
        if overturn.well_signed:
            self._seen.setdefault(overturn.fields["commit"], {})[overturn.digest] = overturn

    def _on_final(self, page: TracedPage) -> None:
        for commit in page.drawn:
            self._drawing.setdefault(commit, page)

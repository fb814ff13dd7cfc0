"""Page rules, recomputed from stored pages and votes: councils, beacons, quorums, finality.

Authors store pages and votes before they send them, so this tree holds all that any node may have.
It follows Streamlet: more than two thirds of a council notarise a page. Of three notarised pages of
consecutive epochs, each the parent of the next, the second is final with its ancestors. A page that
changes the council ends it. The new council continues from that page, not from the pages after it.

A page also states the term of the trainer that leads after it, and the newest final version.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from operator import eq
from typing import Any

from simulations.checkers.outputs import output_of
from simulations.checkers.swarm import TracedNode
from simulations.checkers.watch import Watch
from simulations.checkers.wire import Opened, blake3_digest, peer_of, short
from simulations.runtime.trace import Event

ROW = 3
"""Notarised pages of consecutive epochs that make the second one final."""

PROPOSERS = 3
"""Members that may propose in an epoch."""


@dataclass(frozen=True, slots=True)
class TracedLead:
    """Leader and final version in the pages from an epoch on."""

    epoch: int
    term: int
    """Term of the trainer that leads."""
    head: bytes
    """Manifest digest of the newest final version; empty for none."""


FIRST_LEAD = TracedLead(-1, 0, b"")


@dataclass(frozen=True, slots=True)
class State:
    """State of the chain after a page, for its children."""

    epoch: int
    beacon: bytes
    final_epoch: int
    """Newest epoch that the page and its ancestors show final; -1 for none."""
    lead: TracedLead = FIRST_LEAD
    due: frozenset[bytes] = frozenset()
    """Commits that they list and of which no committee is drawn yet."""
    council_ended: bool = False
    in_recovery: bool = False
    in_a_row: int = 0
    """Pages of consecutive epochs and of one council up to this one."""


@dataclass(slots=True, eq=False)
class TracedPage:
    """A page in the tree of all pages."""

    message: Opened
    members: dict[str, int]
    """Its council with the seats of each member; empty if the council is unknown."""
    flaw: str
    """The rule that it breaks; empty if it is valid."""
    before: State
    state: State
    needed: int
    """Seats whose votes notarise it."""
    draws: bool = False
    drawn: frozenset[bytes] = frozenset()
    """Commits whose committees it draws."""
    votes: set[str] = field(default_factory=set)
    children: list["TracedPage"] = field(default_factory=list)
    final: bool = False

    @property
    def epoch(self) -> int:
        """Epoch of the page."""
        return self.state.epoch

    @property
    def seat(self) -> bytes:
        """Digest of the page that seated its council; empty for the genesis."""
        seat: bytes = self.message.fields["council"]
        return seat

    @property
    def notarised(self) -> bool:
        """True if enough members voted for it."""
        return not self.flaw and sum(map(self.members.__getitem__, self.votes)) >= self.needed

    @property
    def changes(self) -> bool:
        """True if it seats another council."""
        return _changes(self.message.fields)


class Pages:
    """The tree of all pages of a run, and the rules of its members.

    - ``one-final-chain``: no two final pages have the same parent.
    - ``one-vote``: an honest member votes once, and proposes once, in an epoch.
    - ``valid-pages``: an honest member votes for valid pages only.

    ``leads`` are those of the final pages, each with the epoch of the first page that states it.
    """

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._pages: dict[bytes, TracedPage] = {}
        self._waiting: dict[bytes, list[Opened]] = {}
        """Pages by the page that must be here first."""
        self._votes: dict[bytes, dict[str, Opened]] = {}
        self._actions: dict[tuple[str, str, int], bytes] = {}
        """Kind, author and epoch of a page or vote to the page."""
        self._councils: dict[bytes, dict[str, int]] = {}
        self._listed: dict[bytes, bytes] = {}
        """Commit to the final page that listed it."""
        self._final_after: dict[bytes, bytes] = {}
        """Page to its final child."""
        self._notarised: list[Callable[[TracedPage], None]] = []
        self._supported: list[Callable[[Event, TracedNode, TracedPage], None]] = []
        self._lead: list[Callable[[TracedPage], None]] = []
        self._final: list[Callable[[TracedPage], None]] = []
        self.leads = [FIRST_LEAD]
        self.final_epochs: set[int] = set()
        self._newest_final: TracedPage | None = None
        self.conflicting = 0
        """Final pages that conflict with another one."""
        watch.on_message("page", self._on_page)
        watch.on_message("page-vote", self._on_vote)
        watch.on_forget(self._forget)

    @property
    def newest_council(self) -> dict[str, int]:
        """Members and seats of the council that continues from the newest final page."""
        page = self._newest_final
        seat = b"" if page is None else page.message.digest if page.changes else page.seat
        return self._members(seat) or {}

    @property
    def newest_final_epoch(self) -> int:
        """Epoch of the newest final page; -1 for none."""
        return -1 if self._newest_final is None else self._newest_final.epoch

    def on_notarised(self, handler: Callable[[TracedPage], None]) -> None:
        """Call ``handler`` with every page that is notarised."""
        self._notarised.append(handler)

    def on_support(self, handler: Callable[[Event, TracedNode, TracedPage], None]) -> None:
        """Call ``handler`` with every vote of a member for its page, until that is notarised."""
        self._supported.append(handler)

    def on_lead(self, handler: Callable[[TracedPage], None]) -> None:
        """Call ``handler`` with every final page that states another lead than its parent."""
        self._lead.append(handler)

    def on_final(self, handler: Callable[[TracedPage], None]) -> None:
        """Call ``handler`` with every page that becomes final, parents first."""
        self._final.append(handler)

    def committee(self, commit: Opened, page: bytes) -> list[str] | str:
        """Return the member of each ranked seat that a page draws for a commit, or why none is."""
        traced = self._pages.get(page)
        if traced is None or not traced.notarised:
            return "its page is not notarised" if traced is None or not traced.flaw else traced.flaw
        if not traced.draws:
            return "its page draws no committee"
        if commit.digest not in traced.drawn:
            return "another page draws its committee"
        ranking = ranked(traced.state.beacon + commit.digest, traced.members)
        return [peer for peer in ranking if peer != commit.signer]

    def final_page(self, digest: bytes) -> TracedPage | None:
        """Return a final page that is known."""
        page = self._pages.get(digest)
        return page if page is not None and page.final else None

    def epoch(self, page: bytes) -> int:
        """Return the epoch of a known page."""
        return self._pages[page].epoch

    def council(self, page: bytes) -> tuple[str, ...]:
        """Return the members of a page's council; empty if the page is unknown."""
        traced = self._pages.get(page)
        return () if traced is None else tuple(traced.members)

    # Messages

    def _on_page(self, event: Event, member: TracedNode, page: Opened) -> None:
        if page.stores > 1 or not page.well_signed:
            return
        self._require_once(event, member, page, page.digest)
        self._place(page)

    def _on_vote(self, event: Event, member: TracedNode, vote: Opened) -> None:
        if vote.stores > 1 or not vote.well_signed:
            return
        digest: bytes = vote.fields["page"]
        self._require_once(event, member, vote, digest)
        self._votes.setdefault(digest, {})[vote.signer] = vote
        page = self._pages.get(digest)
        if page is None:
            return
        if not page.notarised and vote.signer == member.peer:
            for handler in self._supported:
                handler(event, member, page)
        self._count(page)

    def _require_once(self, event: Event, member: TracedNode, message: Opened, page: bytes) -> None:
        epoch = message.fields["epoch"]
        first = self._actions.setdefault((message.kind, message.signer, epoch), page)
        if first != page and self._watch.swarm.honest(message.signer):
            name, did = self._watch.swarm.name(message.signer), message.kind
            what = f"{name} signed a second {did} in epoch {epoch}: {short(first)}, {short(page)}"
            self._watch.report("one-vote", event.node or member.name, what)

    # Tree

    def _place(self, message: Opened) -> None:
        """Add a page and those that waited for it."""
        for needed in (message.fields["parent"], message.fields["council"]):
            if needed and needed not in self._pages and needed not in self._councils:
                self._waiting.setdefault(needed, []).append(message)
                return
        page = self._traced(message)
        self._pages[message.digest] = page
        parent = self._pages.get(message.fields["parent"])
        if parent is not None:
            parent.children.append(page)
        self._count(page)
        for child in self._waiting.pop(message.digest, []):
            self._place(child)

    def _traced(self, message: Opened) -> TracedPage:
        fields = message.fields
        members, before = self._members(fields["council"]), self._before(fields)
        if members is None or before is None:
            state = State(fields["epoch"], b"", -1)
            return TracedPage(message, {}, "it is of an unknown council", state, state, 1)
        count = sum(members.values())
        seats = ranked(_lot(b"revealer", fields), members)[: self._watch.rules.revealers]
        seats = [] if before.council_ended else seats
        revealers = dict(zip(dict.fromkeys(seats), fields["reveals"], strict=False))
        outputs = [self._output(proof) for proof in fields["reveals"] if proof]
        draws = 2 * sum(bool(revealers.get(peer)) for peer in seats) >= len(seats) > 0
        listed = frozenset(fields["commits"])
        in_a_row = before.in_a_row + 1 if fields["epoch"] == before.epoch + 1 else 1
        begins = fields["epoch"] - fields["final_epoch"] >= self._watch.rules.recovery_epochs
        recovery = (bool(fields["removed"]) and begins) or (
            before.in_recovery and before.council_ended
        )
        text = fields["seed"] + fields["epoch"].to_bytes(8, "big") + b"".join(outputs)
        state = State(
            fields["epoch"],
            blake3_digest(b"prime-node/beacon" + text),
            before.epoch if in_a_row > 2 else before.final_epoch,
            TracedLead(fields["epoch"], fields["term"], fields["head"]),
            listed if draws else before.due | listed,
            before.council_ended or _changes(fields),
            recovery,
            in_a_row,
        )
        flaw = self._flaw(message, members, before, len(set(seats)))
        if fields["joined"] and fields["removed"] and begins:
            flaw = flaw or "a recovery adds members"
        needed = count // 2 + 1 if recovery else 2 * count // 3 + 1
        due = before.due if draws else frozenset()
        return TracedPage(message, members, flaw, before, state, needed, draws, due)

    def _flaw(self, message: Opened, members: dict[str, int], before: State, revealers: int) -> str:
        fields = message.fields
        if fields["epoch"] <= before.epoch:
            return "it is not of a later epoch than its parent"
        if (fields["seed"], fields["final_epoch"]) != (before.beacon, before.final_epoch):
            return "it misstates its ancestors"
        if message.signer not in _first(_lot(b"proposer", fields), members, PROPOSERS):
            return "its author is no proposer"
        if len(fields["reveals"]) != revealers:
            return "it has another number of reveals than of drawn members"
        joined, removed = _peers(fields["joined"]), _peers(fields["removed"])
        lists = fields["commits"] or fields["checkers"] or fields["overturned"] or fields["work"]
        if before.council_ended and (_changes(fields) or lists):
            return "its council has ended and it decides something"
        if _changes(fields) and lists:
            return "it changes the council and lists commits"
        if any(self._has_listed(one, fields["parent"]) for one in fields["commits"]):
            return "it lists a commit again"
        if joined & set(members) or not removed <= set(members):
            return "it adds a member or removes a key that is none"
        size = sum(fields["seats"]) or len(members) + len(joined) - len(removed)
        if not 1 <= size <= self._watch.rules.seats_max:
            return f"it seats {size} members"
        return _lead_flaw(fields, before)

    def _has_listed(self, commit: bytes, page: bytes) -> bool:
        """Return whether a page or one of its final ancestors has listed a commit.

        Members that have not seen a final page extend an older one, and list its commits again.
        """
        listing = self._pages.get(self._listed.get(commit, b""))
        one = self._pages.get(page)
        while one is not None and listing is not None and one.epoch > listing.epoch:
            one = self._pages.get(one.message.fields["parent"])
        return one is not None and one is listing

    def _members(self, seat: bytes) -> dict[str, int] | None:
        """Return the council that a page seated; None if it did not."""
        if not seat:
            return dict.fromkeys(sorted(self._watch.rules.validators), 1)
        if seat not in self._councils:
            page = self._pages.get(seat)
            if page is None or not page.final or not page.changes:
                return None
            fields = page.message.fields
            if fields["drawn"]:
                keys = map(peer_of, fields["drawn"])
                seats = dict(zip(keys, fields["seats"], strict=True))
            else:
                removed = _peers(fields["removed"])
                kept = {peer: n for peer, n in page.members.items() if peer not in removed}
                seats = kept | dict.fromkeys(_peers(fields["joined"]), 1)
            self._councils[seat] = dict(sorted(seats.items()))
        return self._councils[seat]

    def _before(self, fields: dict[str, object]) -> State | None:
        """Return the state before a page; None if its parent is of another council."""
        parent, seat = fields["parent"], fields["council"]
        if not parent:
            return None if seat else State(-1, self._watch.rules.first_beacon(), -1)
        page = self._pages[parent] if isinstance(parent, bytes) else None
        if page is None:
            return None
        if parent == seat:  # the final page that seated it
            state = page.state
            return State(state.epoch, state.beacon, state.epoch, state.lead, state.due)
        return page.state if page.seat == seat else None

    def _output(self, proof: bytes) -> bytes:
        return output_of(proof) if self._watch.real_signatures else proof

    # Votes

    def _count(self, page: TracedPage) -> None:
        """Count the votes for a page."""
        before = page.notarised
        for voter, vote in self._votes.get(page.message.digest, {}).items():
            stated = (vote.fields[key] for key in ("epoch", "council", "parent"))
            fits = all(map(eq, stated, (page.epoch, page.seat, page.message.fields["parent"])))
            if fits and voter in page.members:
                page.votes.add(voter)
            if page.flaw and self._watch.swarm.honest(voter):
                what = f"votes for page {short(page.message.digest)} of epoch {page.epoch}"
                name = self._watch.swarm.name(voter)
                self._watch.report("valid-pages", name, f"{what}, although {page.flaw}")
        if page.notarised and not before:
            for handler in self._notarised:
                handler(page)
            for one in (
                page,
                *page.children,
                *(two for on in page.children for two in on.children),
            ):
                self._finalise_before(one)

    def _path(self, page: TracedPage) -> Iterator[TracedPage]:
        """Yield a page and its ancestors in its council, from the newest to the first final one."""
        one: TracedPage | None = page
        while one is not None and one.seat == page.seat:
            yield one
            if one.final and one is not page:
                return
            one = self._pages.get(one.message.fields["parent"])

    def _finalise_before(self, third: TracedPage) -> None:
        """Make the parent of a page final if it is the third of a row."""
        if third.state.in_a_row < ROW:
            return
        path = list(self._path(third))
        if not all(page.notarised for page in path[:ROW]):
            return
        for page in path[:0:-1]:  # the oldest first, up to the parent
            if not page.final:
                self._finalise(page)
            if page.changes:
                return  # the next council continues from there

    def _finalise(self, page: TracedPage) -> None:
        page.final = True
        self.final_epochs.add(page.epoch)
        if page.epoch > self.newest_final_epoch:
            self._newest_final = page
            if not _same_lead(page.state.lead, self.leads[-1]):
                self.leads.append(page.state.lead)
                for handler in self._lead:
                    handler(page)
        digest, parent = page.message.digest, page.message.fields["parent"]
        self._listed |= dict.fromkeys(page.message.fields["commits"], digest)
        other = self._final_after.setdefault(parent, digest)
        if other != digest:
            self.conflicting += 1
            what = f"{short(other)} and {short(digest)} of epoch {page.epoch} are final after "
            self._watch.report("one-final-chain", "world", what + (short(parent) or "the genesis"))
            return
        for handle in self._final:
            handle(page)

    def _forget(self, oldest: float) -> None:
        """Forget what happened long before the newest final page."""
        self._pages = {
            digest: page
            for digest, page in self._pages.items()
            if page.message.first_at >= oldest
            or page.epoch >= self.newest_final_epoch
            or (page.final and page.changes)
        }
        epoch = self._watch.rules.epoch_at(oldest)
        self._votes = {
            digest: votes
            for digest, votes in self._votes.items()
            if digest in self._pages or any(v.first_at >= oldest for v in votes.values())
        }
        self._waiting = {
            needed: pages
            for needed, pages in self._waiting.items()
            if any(page.first_at >= oldest for page in pages)
        }
        self._actions = {key: page for key, page in self._actions.items() if key[2] >= epoch}
        self._final_after = {
            parent: child
            for parent, child in self._final_after.items()
            if parent in self._pages or child in self._pages
        }


def _lot(purpose: bytes, fields: dict[str, bytes]) -> bytes:
    epoch = int(fields["epoch"]).to_bytes(8, "big")
    return b"prime-node/" + purpose + fields["seed"] + epoch


def ranked(lot: bytes, members: dict[str, int]) -> list[str]:
    """Return the member of each seat in the order in which a lot draws the seats."""
    ranks = (
        (blake3_digest(lot + peer.encode() + (bytes([seat]) if seat else b"")), peer)
        for peer, seats in members.items()
        for seat in range(seats)
    )
    return [peer for _, peer in sorted(ranks)]


def _lead_flaw(fields: dict[str, Any], before: State) -> str:
    term, head = fields["term"], fields["head"]
    if term < before.lead.term:
        return f"its term {term} follows {before.lead.term}"
    stands = (term, head) == (before.lead.term, before.lead.head)
    if stands or not (before.council_ended or _changes(fields)):
        return ""
    return "it changes the leader or the final version while its council ends"


def _same_lead(one: TracedLead, other: TracedLead) -> bool:
    return (one.term, one.head) == (other.term, other.head)


def _first(lot: bytes, members: dict[str, int], count: int) -> list[str]:
    """Return the members whose first seats a lot draws first."""
    return list(dict.fromkeys(ranked(lot, members)))[:count]


def _changes(fields: dict[str, object]) -> bool:
    return bool(fields["joined"] or fields["removed"] or fields["drawn"])


def _peers(keys: tuple[bytes, ...]) -> set[str]:
    return {peer_of(key) for key in keys}

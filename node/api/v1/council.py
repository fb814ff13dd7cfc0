"""Council of a node: its members, its newest pages, and the reason why none is final."""

from collections.abc import Sequence
from dataclasses import asdict
from itertools import pairwise

from node.api.council import CouncilPage, CouncilRow, CouncilSummary
from node.api.observer import Observer
from node.local.units import duration_text
from protocol.consensus.council import Council
from protocol.consensus.era import ERAS_OF_WORK
from protocol.consensus.page_node import PageNode
from protocol.core.types import PeerId, Role
from protocol.replica.page_contents import PageContents

WINDOW_EPOCHS = 60
"""Completed epochs over which pages are counted."""

LATE_EPOCHS = 6
"""Age of the newest final page from which the node reports a fault.

After one epoch without a page, the next page becomes final in the fifth epoch after the last one.
"""

ABSENT_EPOCHS = 3
"""Epochs with votes of others after which a member without a vote counts as absent."""

NAMED_MAX = 3
"""Absent members that a line names."""


class CouncilReader:
    """Reads the council of one node."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        replica, self._me = observer.context.replica, observer.context.signer.peer_id
        self._replica, self._manifest = replica, replica.manifest
        self._tree, self._intake = replica.pages, replica.intake
        self._began = self._manifest.epoch_at(observer.started_at)
        self._seats = PageContents(replica, self._me, self._began, observer.policies.newest_version)
        self._since: tuple[bytes | None, dict[PeerId, int]] = None, {}

    def summary(self) -> CouncilSummary:
        """Return the summary of the council and of its pages."""
        now, tree, council = self._now(), self._tree, self._tree.council
        epoch, tip, absent = self._manifest.epoch_at(now), self._tip(), self._absent()
        window = range(max(0, epoch - WINDOW_EPOCHS), epoch)
        fault = self._fault(now, tip, absent)
        recovery = tip.shown_epoch + self._manifest.council.recovery_epochs
        final = self._replica.ledger.chain.place(self._replica.lead.head)
        return CouncilSummary(
            text=self._text(now, fault, absent),
            fault=fault,
            seat=council.seat.hex(),
            number=council.number,
            trusted_page=self._observer.trusted_page(),
            since_epoch=council.since,
            era=council.era,
            draw_epoch=self._draw_epoch(now),
            draw_seconds=round(max(0.0, self._draw_at(now) - now), 3),
            members_count=len(council.members),
            seats_total=council.seats_total,
            seats_own=council.seats_of([self._me]),
            is_member=self._me in council.places,
            quorum=council.quorum,
            recovery_quorum=council.recovery_quorum,
            absent_count=len(absent),
            votes_missing=self._votes_missing(epoch, tip),
            notarised_epoch=tip.epoch,
            final_epoch=tree.root.epoch,
            final_votes=self._votes(tree.root),
            final_age_epochs=epoch - tree.root.epoch,
            final_age_seconds=round(self._age(tree.root.epoch, now), 3),
            drawn_epoch=self._drawn_epoch(),
            recent_epochs=len(window),
            notarised_share=_share(sum(one in tree.notarised_epochs for one in window), window),
            drawing_share=_share(
                sum(tree.notarised_epochs.get(one, False) for one in window), window
            ),
            recovery_at=self._manifest.epoch_start(recovery) if absent else None,
            leader=self._replica.leader,
            leader_name=self._replica.roster.name_of(self._replica.leader),
            term=self._replica.lead.term,
            is_leader_live=self._is_leader_live(now),
            final_version=-1 if final is None else final,
            refused="" if final is None else self._refused(final),
        )

    def page(self) -> CouncilPage:
        """Return the summary with the members."""
        absent = self._absent()
        members = tuple(self._row(peer, absent) for peer in self._tree.council.members)
        return CouncilPage(**asdict(self.summary()), members=members, no_seat=self._no_seat())

    def _row(self, peer: PeerId, absent: Sequence[PeerId]) -> CouncilRow:
        now, since = self._now(), self._seated()[peer]
        heard = self._tree.heard.get(peer, -1)
        return CouncilRow(
            peer_id=peer,
            me=peer == self._me,
            is_genesis=self._is_genesis(peer),
            seats=self._tree.council.seats_of([peer]),
            since_epoch=since,
            since_at=self._manifest.epoch_start(max(0, since)),
            vote_epoch=heard,
            vote_age_seconds=None if heard < 0 else round(self._age(heard, now), 3),
            is_absent=peer in absent,
            is_silent=self._seats.is_silent(peer, self._manifest.epoch_at(now)),
            evidence=self._evidence(peer),
            name=self._replica.roster.name_of(peer),
        )

    def _refused(self, final: int) -> str:
        """Return a line about the first bad or disputed version after the final one, if any."""
        refusal, dispute = (
            self._replica.batches.refusal(final),
            self._replica.shadows.dispute(final),
        )
        if refusal is None:
            return "" if dispute is None else str(dispute)
        version, trainer = refusal.manifest.message.version, refusal.manifest.signer
        return f"version {version} of trainer …{trainer[-6:]}: {refusal.fault.detail}"

    def _is_leader_live(self, now: float) -> bool:
        leader = self._replica.leader
        live = self._replica.roster.live(now, Role.TRAINER)
        return any(member.peer == leader for member in live)

    def _votes_missing(self, epoch: int, tip: PageNode) -> int:
        """Return the votes that the newest page after the tip lacks; 0 without one."""
        for one in range(epoch, max(tip.epoch, epoch - LATE_EPOCHS), -1):
            votes = [node.council.seats_of(node.votes) for node in self._tree.pages_of(one)]
            if votes:
                return max(0, tip.council.quorum - max(votes))
        return 0

    def _now(self) -> float:
        return self._observer.context.ports.clock.now()

    def _drawn_epoch(self) -> int:
        """Return the epoch of the newest page that draws committees."""
        drawn = (epoch for epoch, draws in self._tree.notarised_epochs.items() if draws)
        return max(drawn, default=-1)

    def _age(self, epoch: int, now: float) -> float:
        """Return the seconds since the start of an epoch; of none, since that of the run."""
        return max(0.0, now - self._manifest.epoch_start(max(0, epoch)))

    def _tip(self) -> PageNode:
        tip = self._tree.tip()
        assert tip is not None  # the root is notarised
        return tip

    def _is_genesis(self, peer: PeerId) -> bool:
        return peer in self._manifest.genesis.validators

    def _seated(self) -> dict[PeerId, int]:
        """Return the epoch since which each member has had its seat."""
        seat, since = self._since
        if seat != self._tree.council.seat:
            since = {}
            for council in self._tree.councils.values():
                since = {peer: since.get(peer, council.since) for peer in council.members}
            self._since = self._tree.council.seat, since
        return since

    def _evidence(self, peer: PeerId) -> str:
        votes = self._tree.equivocations.get(peer)
        if votes is not None:
            return f"two votes in epoch {votes[0].message.epoch}"
        if peer in self._intake.evidence:
            return "two verdicts on one rollout"
        overturned = self._overturned(peer)
        if overturned:
            return overturned
        verdicts, dissents = self._replica.dissents.verdicts_of(peer)
        is_named = peer in self._replica.dissents.named
        return f"{dissents} of {verdicts} verdicts contradict its committees" if is_named else ""

    @property
    def lie(self) -> str:
        """Line about overturned outcomes that this node decided; empty if there are none."""
        overturned = self._overturned(self._me)
        return overturned and f"this key is out of the council for good: {overturned}"

    def _overturned(self, peer: PeerId) -> str:
        """Return a line about overturned outcomes that a member decided; empty if it is honest."""
        if not self._intake.accounts.has_lied(peer):
            return ""
        commit = self._replica.reviews.reversed_by(peer)
        return (
            f"its verdict on {'a rollout' if commit is None else commit.hex()[:12]} was overturned"
        )

    # Reasons

    def _absent(self) -> list[PeerId]:
        """Return the members that miss the votes of the last epochs in which others voted."""
        heard = {peer: self._seats.heard(peer) for peer in self._tree.council.members}
        epoch = self._manifest.epoch_at(self._now())
        newest = max(*heard.values(), epoch - LATE_EPOCHS)
        return [peer for peer, last in heard.items() if newest - last >= ABSENT_EPOCHS]

    def _text(self, now: float, fault: str, absent: Sequence[PeerId]) -> str:
        root, council = self._tree.root, self._tree.council
        count = _many(len(council.members), "member")
        if council.era:
            count += f" ({_many(council.seats_total, 'seat')}, era {council.era})"
        if fault:
            return f"{count}, {fault}"
        final = f"final page {duration_text(self._age(root.epoch, now))} ago"
        if absent:
            return f"{count}, {final}, {self._absence(now, absent)}"
        votes, seats = self._votes(root), self._voting(root).seats_total
        shown = "all votes" if votes == seats else f"{votes} of {seats} votes"
        return f"{count}, {final}, {shown}"

    def _fault(self, now: float, tip: PageNode, absent: Sequence[PeerId]) -> str:
        """Return the reason why no page is final or no committee is drawn."""
        if not self._observer.anti_entropy.synchronised:
            return "this node is not synchronised yet"
        epoch = self._manifest.epoch_at(now)
        for newest, words in (
            (tip.epoch, "no page for {}, so no committee is drawn"),
            (self._tree.root.epoch, "no final page for {}"),
        ):
            if epoch - newest > LATE_EPOCHS:
                cause = self._absence(now, absent) if absent else "too few votes in a row"
                return f"{words.format(duration_text(self._age(newest, now)))}: {cause}"
        if epoch - self._drawn_epoch() > LATE_EPOCHS:
            lasting = duration_text(self._age(self._drawn_epoch(), now))
            return f"no committee is drawn for {lasting}: fewer than half of the revealers reveal"
        return ""

    def _absence(self, now: float, absent: Sequence[PeerId]) -> str:
        """Return a line about members that do not vote, and when they can be removed."""
        council = self._tree.council
        names = [f"…{peer[-6:]}{' (you)' * (peer == self._me)}" for peer in absent[:NAMED_MAX]]
        named = ", ".join(names) + (" …" if len(absent) > NAMED_MAX else "")
        line = f"no votes of {len(absent)} of {_many(len(council.members), 'member')} ({named})"
        present = council.seats_total - council.seats_of(absent)
        if present < council.recovery_quorum:
            return f"{line}; the others are too few to remove them"
        rules = self._manifest.council
        due = max(map(self._seats.heard, absent)) + rules.silent_epochs
        if present < council.quorum:
            due = max(due, self._tip().shown_epoch + rules.recovery_epochs)
        left = self._manifest.epoch_start(due) - now
        when = f"in {duration_text(left)}" if left > 0 else "now"
        return f"{line}; the others can remove {'it' if len(absent) == 1 else 'them'} {when}"

    # Seats

    def _voting(self, node: PageNode) -> Council:
        """Return the council that votes on a page; of the root, it may be a former one."""
        page = node.page
        return node.council if page is None else self._tree.councils[page.message.council]

    def _votes(self, node: PageNode) -> int:
        """Return the received votes on a page, by seats; 0 for the beginning of the run."""
        council = self._voting(node)
        proven = () if node.proof is None else node.proof.voters(council)
        return council.seats_of({*node.votes, *proven})

    def _draw_epoch(self, now: float) -> int:
        """Return the epoch from which the next council is drawn."""
        era_epochs = self._manifest.council.era_epochs
        present = self._manifest.epoch_at(now) // era_epochs
        return max(ERAS_OF_WORK, self._tree.council.era + 1, present) * era_epochs

    def _draw_at(self, now: float) -> float:
        return self._manifest.epoch_start(self._draw_epoch(now))

    def _no_seat(self) -> str:
        """Return the reason why this node has no seat."""
        if self._me in self._tree.council.places:
            return ""
        if not self._observer.anti_entropy.synchronised:
            return "this node is not synchronised yet"
        if self.lie:
            return self.lie
        if self._replica.ledger.workers.is_slashed(self._me):
            return "this key is slashed"
        evidence = self._evidence(self._me)
        if evidence:
            return f"evidence against this key: {evidence}"
        if Role.VALIDATOR not in self._observer.roles:
            roles = ",".join([*self._observer.roles, Role.VALIDATOR])
            return f"this node runs without the role validator; restart with --role {roles}"
        removed = self._removed_epoch()
        if removed is None:
            return self._not_drawn()
        returns = "draw may return" if self._tree.council.era else "page returns"
        return f"removed for silence at epoch {removed}; a later {returns} the seat"

    def _removed_epoch(self) -> int | None:
        """Return the epoch of the last page that removed this node since the last draw."""
        changes = pairwise(self._tree.councils.values())
        left = [
            new.since
            for old, new in changes
            if old.era == new.era == self._tree.council.era
            and self._me in old.places.keys() - new.places
        ]
        return left[-1] if left else None

    def _not_drawn(self) -> str:
        """Return the reason why the draws so far have given no seat to this node."""
        draw, era = self._draw_epoch(self._now()), self._tree.council.era
        due = f"the next draw is due at epoch {draw}"
        if era and self._is_candidate(era):
            return f"the draw of era {era} gave it none; {due}"
        first, last = _eras_before(draw // self._manifest.council.era_epochs)
        if self._is_candidate(last + 1):
            return f"no draw has counted its certified work yet; {due}"
        tokens = " and ".join(f"{self._tokens(one)} tokens in era {one}" for one in (first, last))
        line = f"it needs certified work in each of two eras, and has {tokens}; {due}"
        is_behind = self._intake.ledger.is_behind
        return f"{line}; this node has not counted all final pages yet" if is_behind else line

    def _is_candidate(self, era: int) -> bool:
        """Return whether this node takes part in the draw of an era."""
        return self._is_genesis(self._me) or all(map(self._tokens, _eras_before(era)))

    def _tokens(self, era: int) -> int:
        return self._intake.accounts.tokens([era]).get(self._me, 0)


def _eras_before(era: int) -> range:
    """Return the eras whose work counts in the draw of an era."""
    return range(era - ERAS_OF_WORK, era)


def _share(count: int, window: range) -> float | None:
    return round(count / len(window), 4) if window else None


def _many(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' * (count != 1)}"

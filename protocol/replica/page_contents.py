"""Contents of a page that this node's view supports: changes of the council, commits, the leader.

Members that are silent, or that evidence names, leave. Before the first draw, a validator of the
genesis that is live and has no seat returns. In each era the first page after the work of the era
before is final draws the council anew (``protocol.consensus.era``).

Two views differ in who is live. So a drawn council is approved if it gives every key the seats that
the beacon gives it, leaves out no more than ``DOUBT_SHARE`` of the seats of keys that this node
sees as validators, and seats no more of those that it does not.

A page that a third of the seats refuses is lost. So a page says what honest views may refuse in
every fourth epoch only: a draw in every eighth, otherwise the leader and the final version.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace

from typing_extensions import override

from protocol.consensus.council import follows_change, peers_of
from protocol.consensus.era import ERAS_OF_WORK, drawn_seats
from protocol.consensus.member import Contents, Judgement
from protocol.consensus.page_node import PageNode
from protocol.core.crypto import public_key_from_peer_id
from protocol.core.types import Digest, PeerId, Role
from protocol.ledger.chain import Lead
from protocol.ledger.commits import CommitState
from protocol.ledger.slot_table import slot_of
from protocol.messages import LISTED_MAX, Page
from protocol.replica.leading import PATIENCE_EPOCHS, Leading
from protocol.replica.replica import Replica
from protocol.run.sections import CouncilSection

OPEN_EPOCHS = 4
"""A page of an epoch that is a multiple of this may say what honest views may refuse: the three
pages after it are enough to make pages final."""

MEMORY = 48
"""Removals count for this many times ``silent_epochs``: a day at half an hour."""

DOUBT_SHARE = 0.1
"""Share of the drawn seats about which two honest views may differ. A guess."""

SETTLED_EPOCHS = 2
"""Epochs after which every member has a certificate that this node has."""


class PageContents(Judgement):
    """Judgement of a member that has watched the council since an epoch."""

    def __init__(
        self, replica: Replica, me: PeerId, since_epoch: int, held: Callable[[], int]
    ) -> None:
        self._replica, self._me, self._since = replica, me, since_epoch
        self._leading = Leading(replica, since_epoch, held)
        self._genesis = tuple(map(PeerId, replica.manifest.genesis.validators))
        self._draws: dict[int, dict[PeerId, int]] = {}

    @override
    def contents(self, parent: PageNode, epoch: int) -> Contents | None:
        ledger = self._replica.intake.ledger.root(parent.shown_epoch)
        if ledger is None:
            return None  # another member proposes, or this one once it has the missing work
        drawn = {} if epoch % (2 * OPEN_EPOCHS) else self._due_draw(parent, epoch)
        if drawn:
            seated = {peer: seats for peer, seats in drawn.items() if self._is_willing(peer, epoch)}
            keys = {_key(peer): seats for peer, seats in seated.items()}
            seats = tuple(keys[one] for one in sorted(keys))
            return Contents(drawn=tuple(sorted(keys)), seats=seats, ledger=ledger)
        leaving = [peer for peer in parent.council.members if self._may_leave(peer, epoch)]
        recovers = leaving and epoch - parent.shown_epoch >= self._rules.recovery_epochs
        joined = [] if recovers else self._returning(parent, epoch, len(leaving))
        if joined or leaving:
            return Contents(tuple(map(_key, joined)), tuple(map(_key, leaving)), ledger=ledger)
        return self._of_work(parent, epoch, ledger)

    def _of_work(self, parent: PageNode, epoch: int, ledger: Digest) -> Contents:
        """Return contents that change commits, versions and accounts."""
        is_open = epoch % OPEN_EPOCHS == 0
        lead = Lead(parent.term, parent.head)
        if is_open:
            lead = self._leading.proposed(parent, epoch)
        settle = self._replica.settlement
        certified = self._settled(parent, epoch, CommitState.CERTIFIED)
        # Members may disagree about the reason of a rejection, if its checkers do.
        rejected = self._settled(parent, epoch, CommitState.REJECTED) if is_open else []
        overturned = []
        if is_open:
            overturned = self._replica.reviews.listable(parent, epoch, SETTLED_EPOCHS)[:LISTED_MAX]
        due = self._with_open_slots([*certified, *rejected], parent)
        due = due[: LISTED_MAX - len(overturned)]
        accepted = frozenset(certified)
        decided = settle.decided(
            [one for one in due if one in accepted],
            [one for one in due if one not in accepted],
            overturned,
        )
        contents = Contents(commits=self._new_commits(parent), ledger=ledger)
        work = settle.work(decided, parent.head, lead.head, parent.digest)
        if work is None:
            return contents
        return replace(
            contents, **decided._asdict(), term=lead.term, head=lead.head, work=work.digest
        )

    @override
    def approves(self, page: Page, parent: PageNode) -> bool:
        return (
            self._approves_draw(page, parent)
            and self._leading.approves(page, parent)
            and all(
                self._may_leave(peer, page.epoch + PATIENCE_EPOCHS)
                for peer in peers_of(page.removed)
            )
            and set(peers_of(page.joined))
            <= set(self._returning(parent, page.epoch, len(page.removed)))
            and all(self._is_new(Digest(one), parent) for one in page.commits)
            and len(set(page.commits)) == len(page.commits)
            and self._approves_work(page, parent)
        )

    def _approves_work(self, page: Page, parent: PageNode) -> bool:
        if follows_change(page):
            return True  # it decides no work, and states no root
        if self._replica.intake.ledger.root(parent.shown_epoch) != page.ledger:
            return False
        decided = [*map(Digest, page.decided)]
        is_settled = all(self._is_settled(one, parent) for one in decided)
        if not is_settled or self._with_open_slots(decided, parent) != decided:
            return False
        if not self._replica.reviews.may_list(page.overturned, parent, page.epoch):
            return False
        work = self._replica.settlement.work_of(page, parent.head)
        return work is not None and work.digest == page.work

    @property
    def _rules(self) -> CouncilSection:
        return self._replica.manifest.council

    # Silence, evidence and return

    def is_silent(self, peer: PeerId, epoch: int) -> bool:
        """Return whether a member has sent nothing for so long that it may be removed."""
        return epoch - self.heard(peer) >= self._rules.silent_epochs

    def heard(self, peer: PeerId) -> int:
        """Return the epoch from which the silence of a member counts."""
        return max(self._since, self._replica.pages.heard.get(peer, -1))

    def _may_leave(self, peer: PeerId, epoch: int) -> bool:
        return peer != self._me and (self.is_silent(peer, epoch) or self.is_guilty(peer))

    def is_guilty(self, peer: PeerId) -> bool:
        """Return whether evidence or dissents name a member, so that it may be removed."""
        replica = self._replica
        signed_twice = peer in replica.pages.equivocations or peer in replica.intake.evidence
        is_named = peer in replica.dissents.named or replica.intake.accounts.has_lied(peer)
        return signed_twice or is_named

    def _returning(self, parent: PageNode, epoch: int, leaving: int) -> list[PeerId]:
        council = parent.council
        if council.era:
            return []
        room = self._rules.seats_max - council.seats_total + leaving
        absent = (peer for peer in self._genesis if peer not in council.places)
        return [peer for peer in absent if self._may_return(peer, epoch)][:room]

    def _may_return(self, peer: PeerId, epoch: int) -> bool:
        if epoch < self._returns_from(peer) or not self._is_willing(peer, epoch):
            return False
        member, removals = self._replica.roster.get(peer), self._replica.pages.removals.get(peer)
        if member is None or not removals:
            return True
        # An older record may be that of a member that has been gone since before its removal.
        issued_at = member.record.message.issued_at
        return self._replica.manifest.epoch_at(issued_at) > removals[-1]

    def _returns_from(self, peer: PeerId) -> int:
        """Return the first epoch in which a removed member may return.

        Its pause doubles with each removal of the last while: a member that sends records but no
        votes would stop a small council again and again.
        """
        silent_epochs, removals = self._rules.silent_epochs, self._replica.pages.removals.get(peer)
        if not removals:
            return 0
        recent = [one for one in removals if one > removals[-1] - MEMORY * silent_epochs]
        pause_epochs: int = silent_epochs * 2 ** (len(recent) - 1)
        return removals[-1] + pause_epochs

    def _is_willing(self, peer: PeerId, epoch: int) -> bool:
        """Return whether a key acts as a validator, as far as this node sees."""
        replica = self._replica
        if self.is_guilty(peer) or replica.ledger.workers.is_slashed(peer):
            return False
        member = replica.roster.get(peer)
        if member is None or Role.VALIDATOR not in member.record.message.roles:
            return False
        return replica.roster.is_live(peer, replica.manifest.epoch_start(epoch))

    # Draws

    def _due_draw(self, parent: PageNode, epoch: int) -> dict[PeerId, int]:
        """Return the seats that the beacon gives to each key, if a draw is due."""
        era, accounts = epoch // self._rules.era_epochs, self._replica.intake.accounts
        is_final = accounts.era(parent.shown_epoch + 1) >= era
        if era <= parent.council.era or era < ERAS_OF_WORK or not is_final:
            return {}
        if era not in self._draws:
            eras, beacon = range(era - ERAS_OF_WORK, era), accounts.beacon(era)
            if beacon is None:
                return {}  # this node has not counted the first page of the era
            tokens, seats = accounts.tokens(eras), self._rules.seats_max
            self._draws = {era: drawn_seats(tokens, self._genesis, era, beacon, seats)}
        return self._draws[era]

    def _approves_draw(self, page: Page, parent: PageNode) -> bool:
        if not page.drawn:
            return True
        due = self._due_draw(parent, page.epoch)
        seated = dict(zip(peers_of(page.drawn), page.seats, strict=True))
        if any(due.get(peer) != seats for peer, seats in seated.items()):
            return False
        doubted = sum(
            seats
            for peer, seats in due.items()
            if self._is_willing(peer, page.epoch) is not (peer in seated)
        )
        return doubted <= DOUBT_SHARE * sum(seated.values())

    # Commits

    def _new_commits(self, parent: PageNode) -> tuple[bytes, ...]:
        """Return the oldest commits that no page has listed."""
        entries = (one for one in self._replica.ledger.commits.open_entries() if one.timely)
        epochs = {entry.commit.digest: entry.epoch for entry in entries}
        new = self._replica.pages.unlisted(epochs, parent)
        return tuple(sorted(new, key=lambda commit: (epochs[commit], commit))[:LISTED_MAX])

    def _is_new(self, commit: Digest, parent: PageNode) -> bool:
        """Return whether this node holds a commit, and no page has listed it.

        A commit that nobody holds may be one of many: its author would publish those whose
        committees are to its liking.
        """
        is_held = commit in self._replica.ledger.commits.entries
        return is_held and not self._replica.pages.is_listed(commit, parent)

    def _settled(self, parent: PageNode, epoch: int, state: CommitState) -> list[Digest]:
        """Return the commits with an outcome whose certificates every member has by now."""
        entries = self._replica.ledger.commits.entries.items()
        settled = [
            (entry.decided_epoch, digest)
            for digest, entry in entries
            if entry.state is state
            and entry.decided_epoch <= epoch - SETTLED_EPOCHS
            and self._is_settled(digest, parent)
        ]
        return [digest for _, digest in sorted(settled)]

    def _is_settled(self, commit: Digest, parent: PageNode) -> bool:
        """Return whether a commit has an outcome that no page has made final."""
        entry = self._replica.ledger.commits.entries.get(commit)
        if entry is None or entry.certificate is None or entry.final is not None:
            return False
        return self._replica.pages.outcome(commit, parent) is None

    def _with_open_slots(self, commits: Iterable[Digest], parent: PageNode) -> list[Digest]:
        """Return the first of the held ``commits`` for each slot that no page has decided."""
        accounts, known = self._replica.intake.accounts, self._replica.ledger.commits.known
        before = (known(Digest(one)) for page in parent.pages() for one in page.decided)
        taken = {slot_of(entry.commit) for entry in before if entry is not None}
        found: list[Digest] = []
        for commit in commits:
            entry = known(commit)
            if entry is None or slot_of(entry.commit) in taken:
                continue
            taken.add(slot_of(entry.commit))
            worker, slot = entry.commit.signer, entry.commit.message.slot
            if accounts.is_open(worker, slot, is_evaluation=entry.is_evaluation):
                found.append(commit)
        return found


def _key(peer: PeerId) -> bytes:
    key = public_key_from_peer_id(peer)
    assert key is not None
    return key

"""Contributors of a run and the work of this node, read from the accounts of final pages."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from node.api.contributors import SHOWN_MAX, ContributorRow, ContributorsPage, OwnWork
from node.api.observer import Observer
from protocol.core.types import PeerId
from protocol.ledger.accounts import Account, Accounts, Header
from protocol.ledger.commits import CommitState, Entry
from protocol.ledger.worker_stats import WorkerStats


@dataclass(frozen=True, slots=True)
class Ranking:
    """Contributors by credit, as of the newest final page that is counted."""

    header: Header
    ranks: Mapping[PeerId, int]
    """From 1, ascending: highest credit first, equal ones by peer id."""
    slashed: int = 0
    """Number of slashed keys."""

    @classmethod
    def of(cls, accounts: Accounts) -> "Ranking":
        """Rank the keys that contributed to a run.

        A key whose rollouts were all rejected is left out unless it is slashed: keys are free, and
        such rollouts too.
        """
        listed = sorted((-one.held, peer) for peer, one in accounts.scan() if _is_listed(one))
        ranks = {peer: rank for rank, (_, peer) in enumerate(listed, start=1)}
        slashed = sum(one.slashed >= 0 for _, one in accounts.scan())
        return cls(accounts.header, ranks, slashed)

    def share(self, account: Account) -> float:
        """Return the share of an account in the credit of all keys."""
        return account.held / self.header.totals.credit if self.header.totals.credit else 0.0


def _is_listed(account: Account) -> bool:
    worked = account.rollouts or account.checks or account.steps
    return bool(worked) or account.slashed >= 0


def own_work(
    ranking: Ranking,
    peer: PeerId,
    account: Account | None,
    commits: Iterable[Entry],
    counts: WorkerStats,
) -> OwnWork:
    """Return the work of a key: by its account, and what that lacks by the ledger of this node.

    ``commits`` are those of this key that the ledger holds, ``counts`` its statistics there.
    """
    account = Account(b"", -1) if account is None else account
    undecided = [one for one in commits if one.final is None]
    states = (CommitState.COMMITTED, CommitState.CERTIFIED)
    return OwnWork(
        certified=account.rollouts,
        tokens=account.tokens,
        trained=account.learned,
        checks=account.checks,
        steps=account.steps,
        credit_share=ranking.share(account),
        unlocked=account.credit,
        locked=account.locked_credit,
        forfeited=account.forfeited,
        rank=ranking.ranks.get(peer, 0),
        contributors=len(ranking.ranks),
        slashed=account.slashed >= 0,
        waiting=sum(one.state in states for one in undecided),
        rejected=max(account.rejected, counts.rejected),
        rejected_reasons=dict(sorted((+counts.reasons).items())),
        expired=counts.expired,
        skipped=account.gaps,
        unpaid=account.forgiven,
    )


class ContributorReader:
    """Reads the accounts of one node; ranks them once per final page."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._me = observer.context.signer.peer_id
        self._ranking: Ranking | None = None

    def page(self) -> ContributorsPage:
        """Return the first contributors, the row of this node, and the totals of the run."""
        ranking = self._newest()
        totals = ranking.header.totals
        return ContributorsPage(
            rows=tuple(self._row(ranking, peer) for peer in list(ranking.ranks)[:SHOWN_MAX]),
            own=self._row(ranking, self._me) if self._me in ranking.ranks else None,
            yours=self.own_work(),
            total=len(ranking.ranks),
            rollouts=totals.rollouts,
            tokens=totals.tokens,
            steps=totals.steps,
            credit=totals.credit,
            slashed=ranking.slashed,
            epoch=ranking.header.epoch,
        )

    def own_work(self) -> OwnWork:
        """Return the work of this node."""
        ledger, me = self._observer.context.replica.ledger, self._me
        commits = (one for one in ledger.commits.entries.values() if one.commit.signer == me)
        counts = ledger.workers.counts.get(me, WorkerStats())
        account = self._observer.accounts.account(me)
        found = own_work(self._newest(), me, account, commits, counts)
        return replace(found, slashed=self._observer.is_slashed(me))

    def _newest(self) -> Ranking:
        accounts = self._observer.accounts
        if self._ranking is None or self._ranking.header.page != accounts.header.page:
            self._ranking = Ranking.of(accounts)
        return self._ranking

    def _row(self, ranking: Ranking, peer: PeerId) -> ContributorRow:
        replica, account = self._observer.context.replica, self._observer.accounts.account(peer)
        assert account is not None
        return ContributorRow(
            rank=ranking.ranks[peer],
            peer_id=peer,
            me=peer == self._me,
            name=replica.roster.name_of(peer),
            rollouts=account.rollouts,
            tokens=account.tokens,
            checks=account.checks,
            steps=account.steps,
            credit_share=ranking.share(account),
            unlocked=account.credit,
            locked=account.locked_credit,
            since_epoch=account.since,
            since_at=replica.manifest.epoch_start(account.since),
            slashed_epoch=account.slashed,
        )

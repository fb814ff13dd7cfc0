"""Ledger rules: the work of final pages, and the accounts of all keys that follow from it."""

from bisect import bisect_right
from dataclasses import dataclass

from simulations.checkers.accounts import TracedAccounts
from simulations.checkers.pages import Pages, TracedPage
from simulations.checkers.quorum import Quorum
from simulations.checkers.reexamination import Overturns
from simulations.checkers.swarm import TracedNode
from simulations.checkers.watch import Watch
from simulations.checkers.wire import short
from simulations.checkers.work import TracedWork, WorkTrace
from simulations.runtime.trace import Event

SETTLE_EPOCHS = 1
"""Epochs after which the trace shows a page final that a node has counted."""


@dataclass(frozen=True, slots=True)
class LedgerSums:
    """Sums over all accounts."""

    rollouts: int
    tokens: int
    checks: int
    slashed: int


class TracedLedger:
    """The accounts after each final page, recomputed from the trace.

    - ``true-work``: a final page states the work that follows from traced messages: certificates
      decide its commits, their checkers have signed, and its versions are those that became final.
    - ``true-accounts``: each root that a final page states is that of the recomputed accounts.
    - ``one-ledger``: final pages decide each commit and each slot once, and overturn a commit once.
      Totals never shrink, except for credit that a slashed key forfeits, and by overturned
      outcomes.
    """

    def __init__(self, watch: Watch, pages: Pages, quorum: Quorum, overturns: Overturns) -> None:
        self._watch = watch
        self._work = WorkTrace(watch, pages, quorum, overturns)
        self._decided: dict[bytes, int] = {}
        """Commit to the epoch of the page that decided it."""
        self._overturned: dict[bytes, int] = {}
        self._accounts: TracedAccounts | None = None
        self._totals: tuple[int, ...] = (0, 0, 0, 0, 0)
        self.roots: dict[int, bytes] = {}
        """Epoch of a final page to the root of the accounts after it; -1 for none."""
        watch.on("run", self._on_run)
        pages.on_final(self._on_final)

    @property
    def sums(self) -> LedgerSums:
        """Sums over the accounts after the newest final page."""
        accounts = self._accounts
        if accounts is None:
            return LedgerSums(0, 0, 0, 0)
        rollouts, tokens, checks = map(accounts.total, ("rollouts", "tokens", "checks"))
        return LedgerSums(rollouts, tokens, checks, accounts.slashed)

    def _on_run(self, _event: Event) -> None:
        self._accounts = TracedAccounts(self._watch.rules)
        self.roots[-1] = self._accounts.root

    def _on_final(self, page: TracedPage) -> None:
        accounts, message = self._accounts, page.message
        if accounts is None:
            return  # the trace begins with the run
        if message.fields["parent"] != accounts.page:
            self._report("one-ledger", page, f"it does not follow {short(accounts.page)}")
            return
        self._check_root(page)
        work = self._work.of(page)
        if isinstance(work, str):
            self._report("true-work", page, work)
            return
        self._check_once(page, work, accounts)
        accounts.count(message.digest, page.epoch, page.state.beacon, message.fields["head"], work)
        self._work.note(page, work)
        self._check_totals(page, accounts, work)
        self.roots[page.epoch] = accounts.root

    def _check_root(self, page: TracedPage) -> None:
        stated: bytes = page.message.fields["ledger"]
        shown = page.before.final_epoch
        if stated != self.roots[shown]:
            what = f"it states accounts {short(stated) or 'of no page'} after epoch {shown}"
            self._report("true-accounts", page, f"{what}, not {short(self.roots[shown])}")

    def _check_once(self, page: TracedPage, work: TracedWork, accounts: TracedAccounts) -> None:
        for receipt in work.receipts:
            before = self._decided.get(receipt.commit)
            if before is not None:
                what = f"it decides {short(receipt.commit)} again, after epoch {before}"
                self._report("one-ledger", page, what, receipt.commit)
            self._decided[receipt.commit] = page.epoch
            if not accounts.may_decide(receipt):
                what = f"it decides slot {receipt.slot} of {short(receipt.commit)} again"
                self._report("one-ledger", page, what, receipt.commit)
        for receipt, _ in work.overturned:
            if self._overturned.setdefault(receipt.commit, page.epoch) != page.epoch:
                self._report("one-ledger", page, f"it overturns {short(receipt.commit)} again")

    def _check_totals(self, page: TracedPage, accounts: TracedAccounts, work: TracedWork) -> None:
        names = ("rollouts", "tokens", "checks", "steps")
        kept = accounts.held + accounts.total("forfeited")
        totals = (*map(accounts.total, names), kept)
        for name, new, old in zip((*names, "credit"), totals, self._totals, strict=True):
            if new < old and not work.overturned:
                self._report("one-ledger", page, f"the total of {name} falls from {old} to {new}")
        self._totals = totals

    def _report(self, rule: str, page: TracedPage, flaw: str, *commits: bytes) -> None:
        what = f"page {short(page.message.digest)} of epoch {page.epoch} is final, but {flaw}"
        self._watch.report(rule, "world", what, commits)


@dataclass(frozen=True, slots=True)
class _Claim:
    """Accounts of a node that wait until the trace must show their page final."""

    due_at: float
    node: str
    epoch: int
    root: bytes


class EqualAccounts:
    """``equal-accounts``: every honest node holds the recomputed accounts of its newest page.

    A node that has run for ``epochs`` without a break or a fault has counted all pages that were
    final before, be it always on, restarted or new.
    """

    def __init__(self, watch: Watch, pages: Pages, ledger: TracedLedger, epochs: int) -> None:
        self._watch = watch
        self._ledger = ledger
        self._epochs = epochs
        self._final_at: list[float] = []
        self._final: list[int] = []
        """Times at which pages became final, and their epochs."""
        self._claims: list[_Claim] = []
        pages.on_final(self._on_final)
        watch.on("sample", self._on_sample)
        watch.on_tick(self._on_tick)

    def _on_final(self, page: TracedPage) -> None:
        self._final_at.append(self._watch.now)
        self._final.append(page.epoch)

    def _on_sample(self, event: Event) -> None:
        member, epoch = self._watch.swarm.members.get(event.node), event.facts.get("counted_epoch")
        root = event.facts.get("counted_root")
        if member is None or not member.honest or not isinstance(epoch, int):
            return
        self._check_progress(member, epoch, event.at)
        known = self._ledger.roots.get(epoch)
        if known is None:
            due_at = event.at + SETTLE_EPOCHS * self._watch.rules.epoch_seconds
            stated = root if isinstance(root, bytes) else b""
            self._claims.append(_Claim(due_at, event.node, epoch, stated))
        elif known != root:
            self._report(event.node, epoch, f"has other accounts, not {short(known)}")

    def _check_progress(self, member: TracedNode, epoch: int, now: float) -> None:
        since = now - self._epochs * self._watch.rules.epoch_seconds
        calm_since = self._watch.swarm.calm_since
        if calm_since is None or calm_since > since or not member.steady_since(since, now):
            return
        place = bisect_right(self._final_at, since)
        due = self._final[place - 1] if place else -1
        if epoch < due:
            what = f"has not counted the page of epoch {due}, final {self._epochs} epochs ago"
            self._report(member.name, epoch, what)

    def _on_tick(self, now: float) -> None:
        due = [one for one in self._claims if one.due_at <= now]
        self._claims = [one for one in self._claims if one.due_at > now]
        for one in due:
            known = self._ledger.roots.get(one.epoch)
            if known != one.root:
                right = "which is not final" if known is None else f"not {short(known)}"
                self._report(one.node, one.epoch, f"has other accounts, {right}")

    def _report(self, node: str, epoch: int, what: str) -> None:
        self._watch.report("equal-accounts", node, f"counted up to epoch {epoch}, {what}")

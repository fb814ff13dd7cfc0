from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.api.contributors import ContributorsPage, OwnWork
from node.api.v1.contributors import Ranking, own_work
from node.api.v1.node_source import NodeSource
from node.api.v1.queries import PeerQuery
from protocol.core.types import Digest
from protocol.ledger.accounts import Accounts, CreditRules
from protocol.ledger.commits import CommitState
from protocol.ledger.receipts import PageWork, Receipt, Step
from protocol.ledger.worker_stats import WorkerStats
from tests.node.api.test_observer import NOW, WORKER, WORLD, reader, take
from tests.worlds.messages import identity

OTHER = WORLD.workers[1]
VALIDATOR, TRAINER = WORLD.validators[0], WORLD.trainers[0]
KEYS = [identity(f"key {number}") for number in range(5)]
RULES = CreditRules(100, 10, 1, lock_epochs=20, slash=True, gap_max=64, era_epochs=100)


def receipt(worker, tokens=10, reason="accepted", checkers=()):
    keys = tuple(sorted(one.peer_id for one in checkers))
    return Receipt(bytes(32), worker.peer_id, 0, 0, True, tokens, reason, keys)


def count(accounts, epoch, *receipts, steps=()):
    page = Digest(epoch.to_bytes(32, "big"))
    accounts.apply(page, epoch, Digest(bytes(32)), b"", PageWork(receipts, steps))
    return accounts


def worked(accounts=None):
    """Return accounts of a worker, a validator, a trainer, and a slashed worker.

    The first page is that of epoch 3, or the third one after those that are counted.
    """
    accounts = Accounts(RULES) if accounts is None else accounts
    first = accounts.header.epoch + 1
    count(accounts, first + 3, *[receipt(WORKER, checkers=[VALIDATOR])] * 4, receipt(OTHER, 20))
    lie = receipt(OTHER, reason="computation")
    step = Step(1, bytes(32), TRAINER.peer_id, ((WORKER.peer_id, 3, 30),), 0)
    count(accounts, first + 5, receipt(WORLD.workers[2], reason="reward"), lie, steps=(step,))
    return count(accounts, first + 25)


def test_contributors_are_ranked_by_credit_and_the_slashed_are_last():
    accounts = worked()
    ranking = Ranking.of(accounts)
    keys = [one.peer_id for one in (WORKER, VALIDATOR, TRAINER, OTHER)]
    assert list(ranking.ranks.items()) == [(peer, rank) for rank, peer in enumerate(keys, 1)]
    shares = [ranking.share(accounts.account(peer)) for peer in keys]
    assert shares == [4000 / 4430, 400 / 4430, 30 / 4430, 0.0]
    assert ranking.slashed == 1


def test_a_key_that_only_lied_is_listed_once_it_is_slashed():
    lies = [receipt(OTHER, reason="computation"), receipt(WORKER, reason="reward")]
    ranking = Ranking.of(count(Accounts(RULES), 1, *lies))
    assert list(ranking.ranks) == [OTHER.peer_id]


def test_equal_credit_is_ranked_by_key_and_no_credit_is_no_share():
    ranking = Ranking.of(count(Accounts(RULES), 1, *map(receipt, KEYS)))
    assert list(ranking.ranks) == sorted(one.peer_id for one in KEYS)
    free = count(Accounts(RULES._replace(per_token=0)), 1, receipt(WORKER))
    assert Ranking.of(free).share(free.account(WORKER.peer_id)) == 0.0


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3)), max_size=30))
def test_ranks_follow_credit_and_shares_add_up(work):
    receipts = [receipt(KEYS[who], tokens) for who, tokens in work]
    accounts = count(Accounts(RULES), 1, *receipts)
    ranking, known = Ranking.of(accounts), accounts.all()
    held = [known[peer].held for peer in ranking.ranks]
    assert held == sorted(held, reverse=True)
    assert len(held) == len({who for who, _ in work})
    shares = sum(map(ranking.share, known.values()))
    assert shares == pytest.approx(1.0 if sum(held) else 0.0)


def entry(state, *, final=None):
    return SimpleNamespace(state=state, final=final)


def test_own_work_is_by_final_pages_and_the_rest_by_the_ledger():
    accounts = worked()
    counts = WorkerStats(certified=1, rejected=2, expired=3)
    counts.reasons.update({"reward": 2, "format": 0})
    commits = [
        entry(CommitState.CERTIFIED, final=True),
        entry(CommitState.CERTIFIED),
        entry(CommitState.COMMITTED),
        entry(CommitState.REJECTED),
        entry(CommitState.EXPIRED),
    ]
    account = accounts.account(WORKER.peer_id)
    found = own_work(Ranking.of(accounts), WORKER.peer_id, account, commits, counts)
    assert found == OwnWork(
        certified=4,
        tokens=40,
        trained=3,
        credit_share=4000 / 4430,
        unlocked=0,
        locked=4000,
        rank=1,
        contributors=4,
        waiting=2,
        rejected=2,
        rejected_reasons={"reward": 2},
        expired=3,
    )
    assert found.committed == 4 + 2 + 2 + 3


def test_skipped_slots_and_what_they_cost():
    accounts, worker = Accounts(RULES._replace(gap_max=1)), WORKER.peer_id
    slots = [receipt(WORKER)._replace(slot=slot, evaluation=False) for slot in (0, 4, 5)]
    account = count(accounts, 1, *slots).account(worker)
    found = own_work(Ranking.of(accounts), worker, account, [], WorkerStats())
    assert (found.certified, found.tokens, found.skipped, found.unpaid) == (3, 10, 3, 2)


def test_credit_unlocks_and_is_forfeited():
    accounts = count(worked(), 40)
    account = accounts.account(WORKER.peer_id)
    found = own_work(Ranking.of(accounts), WORKER.peer_id, account, [], WorkerStats())
    assert (found.unlocked, found.locked, found.forfeited, found.slashed) == (4000, 0, 0, False)
    account = accounts.account(OTHER.peer_id)
    found = own_work(Ranking.of(accounts), OTHER.peer_id, account, [], WorkerStats())
    assert (found.unlocked, found.locked, found.forfeited, found.slashed) == (0, 0, 2000, True)
    assert (found.certified, found.rejected, found.rejected_reasons) == (1, 1, {})


def test_a_key_without_counted_work_has_no_rank():
    found = own_work(Ranking.of(worked()), "nobody", None, [], WorkerStats())
    assert found == OwnWork(contributors=4)


def accounts_of(node):
    return node.observer.context.replica.intake.accounts


def source_of(node):
    source = NodeSource(node.summary, SimpleNamespace(now=lambda: NOW), "boot")
    assert source.contributors() == ContributorsPage()
    source._reader = node
    return source


def test_a_restarted_node_shows_the_counts_of_final_pages():
    """Its ledger holds fewer commits than it has made, that of a validator more."""
    restarted, validator = reader(WORKER), reader(VALIDATOR)
    for node, length in ((restarted, 1), (validator, 2)):
        chain = WORLD.chain(WORKER, length)
        take(node, WORLD.record(WORKER, ("inference",), 1), *chain)
        take(node, *map(WORLD.certificate, chain))
        worked(accounts_of(node))
        (row,) = source_of(node).peers(PeerQuery(text=WORKER.peer_id)).rows
        assert row.certified == 4
        page = source_of(node).contributors()
        assert [one.rollouts for one in page.rows] == [4, 0, 0, 1]
        assert page.own.peer_id == node.observer.context.signer.peer_id
        assert page.yours == node.summary().yours
    own = restarted.summary().yours
    assert (own.certified, own.tokens, own.waiting) == (4, 40, 1)


def test_the_page_has_names_dates_and_totals():
    node = reader(WORKER)
    take(node, WORLD.record(OTHER, ("inference",), 1, name="Éva <b>"))
    last = worked(accounts_of(node)).header.epoch
    page = source_of(node).contributors()
    assert (page.total, page.rollouts, page.tokens, page.steps) == (4, 5, 60, 1)
    assert page.credit == sum(row.unlocked + row.locked for row in page.rows)
    assert (page.slashed, page.epoch) == (1, last)
    assert [row.rank for row in page.rows] == [1, 2, 3, 4]
    rows = {row.peer_id: row for row in page.rows}
    assert [peer for peer, row in rows.items() if row.me] == [WORKER.peer_id]
    other = rows[OTHER.peer_id]
    assert (other.rank, other.name, other.slashed_epoch) == (4, "Éva <b>", last - 20)
    assert (other.since_epoch, other.since_at) == (last - 22, WORLD.manifest.epoch_start(last - 22))
    assert (rows[VALIDATOR.peer_id].checks, rows[TRAINER.peer_id].steps) == (4, 1)
    own = rows[WORKER.peer_id]
    assert (own.name, own.checks, own.steps, own.tokens) == ("", 0, 0, 40)
    assert page.own == own


def test_only_the_first_are_listed_and_this_node(monkeypatch):
    monkeypatch.setattr("node.api.v1.contributors.SHOWN_MAX", 2)
    node = reader(OTHER)
    worked(accounts_of(node))
    page = source_of(node).contributors()
    assert [row.rank for row in page.rows] == [1, 2]
    assert (page.own.rank, page.own.me, page.total) == (4, True, 4)


def test_a_new_final_page_changes_the_ranks():
    node = reader(WORKER)
    accounts = worked(accounts_of(node))
    assert node.summary().yours.rank == 1
    count(accounts, accounts.header.epoch + 1, receipt(KEYS[0], 1000))
    assert (node.summary().yours.rank, node.summary().yours.contributors) == (2, 5)


def test_every_node_shows_keys_that_final_pages_slashed():
    """Also one that has received no message about them."""
    node = reader(WORKER)
    take(node, WORLD.record(OTHER, ("inference",), 1, name="Éva"))
    worked(accounts_of(node))
    page = source_of(node).peers(PeerQuery(reputation="slashed"))
    assert [(row.peer_id, row.name) for row in page.rows] == [(OTHER.peer_id, "Éva")]
    assert node.status().slashed == 1
    assert [one.reputation for one in node.status().members if one.peer_id == OTHER.peer_id] == [
        "slashed"
    ]
    assert not node.why().slashed
    slashed = reader(OTHER)
    worked(accounts_of(slashed))
    assert slashed.why().slashed and slashed.summary().yours.slashed
    assert slashed.observer.stage().state == "paused"

"""Final pages with work, and what one node sends another of them."""

from collections.abc import Mapping

from protocol.consensus.member import Contents
from protocol.ledger.final_ledger import CountedPage
from protocol.replica.replica import Replica
from tests.worlds.messages import World
from tests.worlds.page_book import PageBook


def working_book(world: World, last: int) -> PageBook:
    """Return a book in which each page from epoch 3 on, except every third, certifies a commit.

    The page before it lists nothing: only a node that receives the work can count these pages.
    """
    commits = world.chain(world.workers[0], last // 2)
    places = [epoch for epoch in range(3, last) if epoch % 3][: len(commits)]
    contents = {
        epoch: Contents(certified=(commit.digest,))
        for epoch, commit in zip(places, commits, strict=False)
    }
    return PageBook(world.manifest, world.validators, contents)


def walk_back(replica: Replica, history: Mapping[bytes, CountedPage]) -> bool:
    """Send a node the final pages that it misses with their work; False if there are none."""
    ledger, is_news = replica.intake.ledger, False
    while (missing := ledger.missing) is not None:
        page, found = missing.page, False
        for _ in range(missing.pages):
            counted = history.get(page)
            if counted is None:
                break
            offered = ledger.offer(counted.page, counted.work)
            assert isinstance(offered, bool), offered
            found |= offered
            page = counted.page.message.parent
        if not found:
            break
        is_news = True
        replica.count_final()
    return is_news

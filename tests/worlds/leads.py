"""Final pages that decide which trainer leads, and which version is final."""

from protocol.consensus.member import Contents
from tests.worlds.page_book import PageBook


def show_lead(world, replica, term: int, head) -> None:
    """Show a replica without pages the first ones of a run; they say that ``head`` is final."""
    lead = Contents(term=term, head=b"" if head is None else head.digest)
    PageBook(world.manifest, world.validators, {1: lead}).show(replica, 3)
    assert replica.lead.term == term

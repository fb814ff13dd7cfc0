"""Council members that vote twice, withhold their reveals, or propose what nobody approves."""

from typing_extensions import override

from protocol.core.crypto import digest
from protocol.core.rng import Rng
from protocol.messages import Message, Page, PageVote, Reveal, Signed, seal
from protocol.replica.replica import Replica
from simulations.adversaries.gossip import GossipRewritingTransport
from simulations.ports.parts import Parts


class TwoVotesTransport(GossipRewritingTransport):
    """Gossips to half of its peers a vote for another page, which nobody has proposed."""

    kind: type[Message] = PageVote
    to_half = True

    @override
    def other(self, own: Signed[PageVote], replica: Replica) -> Signed[PageVote]:
        vote = own.message.model_copy(update={"page": digest(own.message.page)})
        return seal(vote, replica.run_id, self.parts.signer)


class WithholdingTransport(GossipRewritingTransport):
    """Gossips none of its reveals."""

    kind: type[Message] = Reveal

    @override
    def other(self, own: Signed[Reveal], replica: Replica) -> None:
        return None


class WrongLeadsTransport(GossipRewritingTransport):
    """Gossips, instead of its pages, pages with another leader or another final version."""

    kind: type[Message] = Page

    @override
    def other(self, own: Signed[Page], replica: Replica) -> Signed[Page]:
        signer = self.parts.signer
        if own.signer != signer.peer_id:
            return own
        return seal(_misled(own.message), replica.run_id, signer)


def _misled(page: Page) -> Page:
    """Return the page with the next leader in every second epoch, else with an unknown version."""
    wrong = {"head": digest(page.head)} if page.epoch % 2 else {"term": page.term + 1}
    return page.model_copy(update=wrong)


def two_votes(parts: Parts, _rng: Rng) -> Parts:
    """Vote twice in an epoch, for different peers."""
    return parts.with_ports(transport=TwoVotesTransport(parts))


def withheld_reveals(parts: Parts, _rng: Rng) -> Parts:
    """Keep its reveals for itself: it alone can foresee a beacon that they would change."""
    return parts.with_ports(transport=WithholdingTransport(parts))


def wrong_leads(parts: Parts, _rng: Rng) -> Parts:
    """Propose a leader and final versions that no honest member approves."""
    return parts.with_ports(transport=WrongLeadsTransport(parts))

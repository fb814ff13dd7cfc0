"""Council members that vote twice, withhold their reveals, or propose what nobody approves."""

from typing_extensions import override

from protocol.core.crypto import Signer, digest
from protocol.core.faults import Fault
from protocol.core.rng import Rng
from protocol.core.types import PeerId, RunId
from protocol.gossipsub.message import decode_message, encode_message, sign_message
from protocol.messages import Page, PageVote, Reveal, open_envelope, seal
from simulations.adversaries.gossip import GossipRewritingTransport, trusting
from simulations.ports.parts import Parts


class TwoVotesTransport(GossipRewritingTransport):
    """Gossips to half of its peers a vote for another page, which nobody has proposed."""

    @override
    def rewrites(self, peer: PeerId) -> bool:
        return bool(digest(peer.encode())[0] % 2)

    @override
    def rewritten(self, encoded: bytes, run_id: RunId) -> bytes | None:
        message, signer = decode_message(encoded), self.parts.signer
        if isinstance(message, Fault) or message.author != signer.peer_id:
            return encoded
        vote = open_envelope(message.data, PageVote, run_id, trusting)
        if isinstance(vote, Fault):
            return encoded
        envelope = _other_vote(vote.message, run_id, signer)
        seqno = int.from_bytes(message.seqno, "big") + 1
        return encode_message(sign_message(signer, message.topic, envelope, seqno))


def _other_vote(vote: PageVote, run_id: RunId, signer: Signer) -> bytes:
    other = vote.model_copy(update={"page": digest(vote.page)})
    return seal(other, run_id, signer).envelope


class WithholdingTransport(GossipRewritingTransport):
    """Gossips none of its reveals."""

    @override
    def rewritten(self, encoded: bytes, run_id: RunId) -> bytes | None:
        message = decode_message(encoded)
        if isinstance(message, Fault) or message.author != self.parts.signer.peer_id:
            return encoded
        reveal = open_envelope(message.data, Reveal, run_id, trusting)
        return encoded if isinstance(reveal, Fault) else None


class WrongLeadsTransport(GossipRewritingTransport):
    """Gossips, instead of its pages, pages with another leader or another final version."""

    @override
    def rewritten(self, encoded: bytes, run_id: RunId) -> bytes | None:
        message, signer = decode_message(encoded), self.parts.signer
        if isinstance(message, Fault) or message.author != signer.peer_id:
            return encoded
        page = open_envelope(message.data, Page, run_id, trusting)
        if isinstance(page, Fault) or page.signer != signer.peer_id:
            return encoded
        envelope = seal(_misled(page.message), run_id, signer).envelope
        seqno = int.from_bytes(message.seqno, "big") + 1
        return encode_message(sign_message(signer, message.topic, envelope, seqno))


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

"""Council: the keys that vote on pages, and the check of a page without its ancestors.

The genesis validators are the first council. A page that changes the council seats the next one. A
page names its council, its parent's beacon and what its ancestors show. So a page with the votes of
its council (``NotarisedPage``) convinces a node that knows only the council.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from protocol.core.codec import decode, encode
from protocol.core.crypto import (
    SIGNATURE_BYTES,
    Output,
    Verifier,
    digest,
    peer_id_from_public_key,
    signing_bytes,
)
from protocol.core.faults import Fault, FaultCode
from protocol.core.types import Digest, PeerId, RunId
from protocol.messages import (
    COUNCIL_MAX,
    ENVELOPE_BYTES_MAX,
    Opened,
    Page,
    PageVote,
    Signed,
    open_envelope,
    signature_of,
    with_signature,
)

PROPOSERS = 3
"""Members that may propose in an epoch: the later ones if the earlier ones are silent or wrong."""

RANKINGS_MAX = 1024
"""Cached rankings: one per commit without an outcome, each read on every tick."""


@dataclass(frozen=True)
class Council:
    """Voters of a part of the chain."""

    seat: bytes
    """Digest of the final page that seated it; empty for the genesis."""
    members: tuple[PeerId, ...]
    """By peer id."""
    seats: tuple[int, ...] = ()
    """Seats of each member; empty: one each."""
    number: int = 0
    """Councils before it."""
    since: int = -1
    """Epoch of the seating page."""
    era: int = 0
    """Era for which it was drawn; 0 for the genesis."""

    @cached_property
    def places(self) -> dict[PeerId, int]:
        """Index of each member."""
        return {peer: place for place, peer in enumerate(self.members)}

    @cached_property
    def seats_total(self) -> int:
        """Number of seats."""
        return sum(self.seats) or len(self.members)

    def seats_of(self, peers: Iterable[PeerId]) -> int:
        """Return the seats of some members together; other keys have none."""
        places = [self.places[peer] for peer in peers if peer in self.places]
        return sum(self.seats[place] for place in places) if self.seats else len(places)

    @property
    def quorum(self) -> int:
        """Seats whose votes notarise a page: more than two thirds."""
        return 2 * self.seats_total // 3 + 1

    @property
    def recovery_quorum(self) -> int:
        """Seats whose votes notarise a page of a recovery: more than half."""
        return self.seats_total // 2 + 1

    def proposers(self, seed: bytes, epoch: int) -> tuple[PeerId, ...]:
        """Return the members that may propose in an epoch after a page with beacon ``seed``.

        Each but the first proposes only if it supports no page of those before it.
        """
        return tuple(dict.fromkeys(self._drawn(b"proposer", seed, epoch)))[:PROPOSERS]

    def proposer(self, seed: bytes, epoch: int) -> PeerId:
        """Return the first of ``proposers``."""
        return self._drawn(b"proposer", seed, epoch)[0]

    def revealers(self, seed: bytes, epoch: int, count: int) -> tuple[PeerId, ...]:
        """Return the members that reveal for that page, in the order of its proofs.

        They have the first ``count`` seats.
        """
        return tuple(dict.fromkeys(self.reveal_seats(seed, epoch, count)))

    def reveal_seats(self, seed: bytes, epoch: int, count: int) -> tuple[PeerId, ...]:
        """Return the members of the seats that reveal for that page."""
        return self._drawn(b"revealer", seed, epoch)[:count]

    def _drawn(self, purpose: bytes, seed: bytes, epoch: int) -> tuple[PeerId, ...]:
        return self.ranked_seats(b"prime-node/" + purpose + seed + epoch.to_bytes(8, "big"))

    def ranked_seats(self, lot: bytes, without: PeerId | None = None) -> tuple[PeerId, ...]:
        """Return the member of each seat in the order of the seats, which ``lot`` ranks by hash.

        A member with many seats stands there many times: among the first seats of a ranking, each
        group of keys has its share of the council, however few or many keys it has.
        """
        return _ranked(self.members, self.seats, lot, without)

    def ranked(self, lot: bytes, without: PeerId | None = None) -> tuple[PeerId, ...]:
        """Return the members in the order of their first seats."""
        return tuple(dict.fromkeys(self.ranked_seats(lot, without)))

    def after(self, page: Signed[Page], era_epochs: int) -> "Council":
        """Return the council that a page seats."""
        message = page.message
        if message.drawn:
            seats = dict(zip(peers_of(message.drawn), message.seats, strict=True))
            era = message.epoch // era_epochs
        else:
            removed, counts = peers_of(message.removed), self.seats or (1,) * len(self.members)
            had = zip(self.members, counts, strict=True)
            seats = {peer: count for peer, count in had if peer not in removed}
            seats |= dict.fromkeys(peers_of(message.joined), 1)
            era = self.era
        members = tuple(sorted(seats))
        counts = tuple(seats[peer] for peer in members)
        number, since = self.number + 1, message.epoch
        return Council(
            page.digest, members, () if set(counts) == {1} else counts, number, since, era
        )


@lru_cache(maxsize=RANKINGS_MAX)
def _ranked(
    members: tuple[PeerId, ...], seats: tuple[int, ...], lot: bytes, without: PeerId | None
) -> tuple[PeerId, ...]:
    counts = seats or (1,) * len(members)
    ranks = (
        (digest(lot + peer.encode() + _suffix(seat)), peer)
        for peer, count in zip(members, counts, strict=True)
        for seat in range(count)
        if peer != without
    )
    return tuple(peer for _, peer in sorted(ranks))


def _suffix(seat: int) -> bytes:
    return bytes([seat]) if seat else b""


@dataclass(frozen=True, slots=True)
class PageRules:
    """Constants of a run."""

    run_id: RunId
    recovery_epochs: int
    """Epochs without a final page after which more than half of the seats may remove members."""
    revealers: int
    """Seats drawn to reveal in each epoch; below half of them the page draws no committee."""
    council_max: int
    """Maximum seats."""
    era_epochs: int
    """Epochs after which a council is drawn anew."""

    def alpha(self, seed: bytes, epoch: int) -> bytes:
        """Return the input of the reveals for the page of an epoch."""
        return b"prime-node/reveal" + self.run_id + seed + epoch.to_bytes(8, "big")

    def begins_recovery(self, page: Page) -> bool:
        """Return whether a page needs more than half of the seats only."""
        return bool(page.removed) and page.epoch - page.final_epoch >= self.recovery_epochs


@dataclass(frozen=True, slots=True)
class CheckedPage:
    """A valid page of a council, apart from its votes and its place in the chain."""

    page: Signed[Page]
    beacon: Digest
    """Hash of the parent's beacon, the epoch and the outputs of the reveals."""
    draws: bool
    """True if committees are drawn with its beacon: at least half of the drawn seats revealed."""


def check_page(
    page: Signed[Page], council: Council, rules: PageRules, output: Output
) -> CheckedPage | Fault:
    """Check what follows from a page and its council alone."""
    message = page.message
    if message.council != council.seat:
        return Fault(FaultCode.WRONG_COUNCIL, "of another council")
    if page.signer not in council.proposers(message.seed, message.epoch):
        return Fault(FaultCode.NOT_PROPOSER)
    if message.final_epoch >= message.epoch:
        return Fault(FaultCode.WRONG_EPOCH, "an ancestor after it")
    fault = _changes_fault(message, council, rules)
    if fault is not None:
        return fault
    seats: tuple[PeerId, ...] = ()
    if not follows_change(message):
        seats = council.reveal_seats(message.seed, message.epoch, rules.revealers)
    revealers = tuple(dict.fromkeys(seats))
    if len(message.reveals) != len(revealers):
        return Fault(FaultCode.BAD_REVEAL, "another number than of revealers")
    alpha, outputs = rules.alpha(message.seed, message.epoch), dict[PeerId, bytes]()
    for peer, proof in zip(revealers, message.reveals, strict=True):
        if not proof:
            continue
        revealed = output(peer, alpha, proof)
        if revealed is None:
            return Fault(FaultCode.BAD_REVEAL, f"of {peer}")
        outputs[peer] = revealed
    text = message.seed + message.epoch.to_bytes(8, "big") + b"".join(outputs.values())
    draws = bool(seats) and 2 * sum(peer in outputs for peer in seats) >= len(seats)
    return CheckedPage(page, digest(b"prime-node/beacon" + text), draws)


def follows_change(page: Page) -> bool:
    """Return whether an ancestor of its council changes the council: then a page has no reveals.

    So a page shows that its council has ended, even without its ancestors.
    """
    return not page.reveals


def _changes_fault(page: Page, council: Council, rules: PageRules) -> Fault | None:
    if follows_change(page) and page.changes_council:
        return Fault(FaultCode.WRONG_COUNCIL, "its council has ended")
    if follows_change(page) and (page.lists_work or page.ledger):
        return Fault(FaultCode.WRONG_COUNCIL, "its council has ended")
    if page.changes_council and page.lists_work:
        return Fault(FaultCode.WRONG_COUNCIL, "a page that changes the council lists nothing")
    if page.drawn or page.seats:
        return _draw_fault(page, council, rules)
    joined, removed = set(peers_of(page.joined)), set(peers_of(page.removed))
    if len(joined) + len(removed) != len(page.joined) + len(page.removed):
        return Fault(FaultCode.WRONG_COUNCIL, "a key twice")
    if not removed <= council.places.keys() or joined & council.places.keys():
        return Fault(FaultCode.WRONG_COUNCIL, "changes of another council")
    if not 1 <= len(council.members) + len(joined) - len(removed) <= rules.council_max:
        return Fault(FaultCode.WRONG_COUNCIL, "too few or too many members")
    if joined and (council.era or rules.begins_recovery(page)):
        return Fault(FaultCode.WRONG_COUNCIL, "only a draw seats members now")
    return None


def _draw_fault(page: Page, council: Council, rules: PageRules) -> Fault | None:
    if page.joined or page.removed or page.epoch // rules.era_epochs <= council.era:
        return Fault(FaultCode.WRONG_COUNCIL, "a draw that is not due")
    if len(page.drawn) != len(page.seats) or list(page.drawn) != sorted(set(page.drawn)):
        return Fault(FaultCode.WRONG_COUNCIL, "keys that are not in order")
    if sum(page.seats) > rules.council_max:
        return Fault(FaultCode.WRONG_COUNCIL, "too many seats")
    return None


def peers_of(keys: Sequence[bytes]) -> list[PeerId]:
    """Return the peer ids of public keys."""
    return [peer_id_from_public_key(key) for key in keys]


@dataclass(frozen=True, slots=True)
class NotarisedPage:
    """A page with the votes that notarise it: 64 bytes for each."""

    page: Signed[Page]
    votes: tuple[tuple[int, bytes], ...]
    """Places of the voters in the council, ascending, and their signatures."""

    @classmethod
    def of(
        cls, page: Signed[Page], votes: Sequence[Signed[PageVote]], council: Council
    ) -> "NotarisedPage":
        """Collect the votes on a page."""
        placed = ((council.places[vote.signer], signature_of(vote)) for vote in votes)
        return cls(page, tuple(sorted(placed)))

    def encoded(self) -> bytes:
        """Return the canonical bytes, as sent and as stored."""
        bits = sum(1 << place for place, _ in self.votes)
        signatures = b"".join(signature for _, signature in self.votes)
        return encode(
            {
                "page": self.page.envelope,
                "signatures": signatures,
                "voters": bits.to_bytes((bits.bit_length() + 7) // 8, "little"),
            }
        )

    def voters(self, council: Council) -> list[PeerId]:
        """Return the members whose votes these are."""
        return [council.members[place] for place, _ in self.votes]

    def opened_votes(self, council: Council, run_id: RunId) -> list[Signed[PageVote]]:
        """Return the votes as messages; ``verified`` has checked their signatures."""
        message = vote_for(self.page)
        return [
            with_signature(message, run_id, council.members[place], signature)
            for place, signature in self.votes
        ]

    def verified(
        self, council: Council, rules: PageRules, verify: Verifier, *, is_recovery: bool
    ) -> Fault | None:
        """Check that enough members of the page's council voted for it."""
        needed = council.recovery_quorum if is_recovery else council.quorum
        if not self.votes or self.votes[-1][0] >= len(council.members):
            return Fault(FaultCode.WRONG_COUNCIL, "votes of another council")
        if council.seats_of(self.voters(council)) < needed:
            return Fault(FaultCode.WRONG_COUNCIL, "too few votes")
        vote = vote_for(self.page)
        signed = signing_bytes(PageVote.kind, rules.run_id, encode(vote.model_dump()))
        for place, signature in self.votes:
            if not verify(council.members[place], signed, signature):
                return Fault(FaultCode.BAD_SIGNATURE, "of a vote")
        return None


def vote_for(page: Signed[Page]) -> PageVote:
    """Return the vote for a page."""
    message = page.message
    return PageVote(
        epoch=message.epoch, council=message.council, page=page.digest, parent=message.parent
    )


_VOTERS_BYTES_MAX = (COUNCIL_MAX + 7) // 8

NOTARISED_BYTES_MAX = ENVELOPE_BYTES_MAX + 16 * 1024
"""A page, and the signatures of 200 members."""


def decode_notarised(
    data: bytes, run_id: RunId, verify: Verifier, opened: Opened
) -> NotarisedPage | Fault:
    """Decode what ``NotarisedPage.encoded`` returns; the votes are not checked yet."""
    fields = decode(data, bytes_max=NOTARISED_BYTES_MAX)
    match fields:
        case Fault():
            return fields
        case {
            "page": bytes(envelope),
            "signatures": bytes(signatures),
            "voters": bytes(voters),
        } if len(fields) == 3:
            page = open_envelope(envelope, Page, run_id, verify, opened)
        case _:
            return Fault(FaultCode.BAD_FIELDS, "not a notarised page")
    if isinstance(page, Fault):
        return page
    if len(voters) > _VOTERS_BYTES_MAX:
        return Fault(FaultCode.BAD_FIELDS, "too many voters")
    bits = int.from_bytes(voters, "little")
    places = [place for place in range(bits.bit_length()) if bits >> place & 1]
    if len(signatures) != SIGNATURE_BYTES * len(places) or voters[-1:] == b"\x00":
        return Fault(FaultCode.BAD_FIELDS, "other signatures than voters")
    parts = (signatures[i : i + SIGNATURE_BYTES] for i in range(0, len(signatures), 64))
    return NotarisedPage(page, tuple(zip(places, parts, strict=True)))


CHAIN_BYTES_MAX = 2 * 1024 * 1024
"""64 pages of the largest council; three of a council of 100 take 20 KB."""


def encode_chain(chain: Sequence[NotarisedPage]) -> bytes:
    """Return the canonical bytes of notarised pages, as sent and as stored."""
    return encode([one.encoded() for one in chain])


def decode_chain(
    data: bytes, run_id: RunId, verify: Verifier, opened: Opened
) -> list[NotarisedPage] | Fault:
    """Decode what ``encode_chain`` returns; the votes are not checked yet."""
    values = decode(data, bytes_max=CHAIN_BYTES_MAX)
    if isinstance(values, Fault):
        return values
    if not isinstance(values, tuple) or not values or not all(type(one) is bytes for one in values):
        return Fault(FaultCode.BAD_FIELDS, "not a list of pages")
    chain: list[NotarisedPage] = []
    for one in values:
        page = decode_notarised(one, run_id, verify, opened)
        if isinstance(page, Fault):
            return page
        chain.append(page)
    return chain

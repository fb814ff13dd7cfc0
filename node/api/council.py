"""Status of the council, of its newest pages and of what they decide, as one node sees them."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CouncilSummary:
    """The present council and its newest pages; an epoch of -1 stands for none."""

    text: str = ""
    """One line for people; empty before the node follows a run."""
    fault: str = ""
    """Reason why no page is final or no committee is drawn; empty while pages follow each other."""
    seat: str = ""
    """Digest of the page that seated the council, hexadecimal; empty for the genesis."""
    number: int = 0
    """Councils before it."""
    trusted_page: str = ""
    """Page, ``EPOCH:DIGEST``, by which this node checked its history; empty if it took what its
    peers showed."""
    since_epoch: int = -1
    """Epoch of the page that seated it; -1 for the genesis."""
    era: int = 0
    """Era for which it was drawn; 0 for the genesis."""
    draw_epoch: int = -1
    """Epoch from which the next council is drawn."""
    draw_seconds: float = 0.0
    """Seconds until that epoch; 0 if the draw is due."""
    members_count: int = 0
    seats_total: int = 0
    """Seats of all members; each has one vote."""
    seats_own: int = 0
    """Seats of this node."""
    is_member: bool = False
    """True if this node has a seat."""
    quorum: int = 0
    """Votes that notarise a page."""
    recovery_quorum: int = 0
    """Votes that notarise a page of a recovery."""
    absent_count: int = 0
    """Members that miss the votes of the last epochs; a silent one has missed more of them."""
    votes_missing: int = 0
    """Votes that the newest page lacks; 0 if it is notarised."""
    notarised_epoch: int = -1
    """Epoch of the newest notarised page."""
    final_epoch: int = -1
    """Epoch of the newest final page."""
    final_votes: int = 0
    """Votes on the newest final page that this node has received."""
    final_age_epochs: int = 0
    final_age_seconds: float = 0.0
    """Time since the start of its epoch."""
    drawn_epoch: int = -1
    """Epoch of the newest page that draws committees."""
    recent_epochs: int = 0
    """Epochs that the two shares below count."""
    notarised_share: float | None = None
    """Share of recent epochs with a notarised page; None in the first epoch."""
    drawing_share: float | None = None
    """Share of recent epochs with a page that draws committees; None in the first epoch."""
    leader: str = ""
    """Trainer that leads by the newest final page."""
    leader_name: str = ""
    """Name in its record."""
    term: int = 0
    """Its term."""
    is_leader_live: bool = False
    """True if its record is live and offers the role trainer."""
    final_version: int = -1
    """Newest final version; -1 for none, and while it is not on this node."""
    refused: str = ""
    """Version that this node does not make final for its batch, its trainer and the reason; empty
    for none."""
    recovery_at: float | None = None
    """Unix time from which ``recovery_quorum`` votes remove silent members; None if all vote."""


@dataclass(frozen=True, slots=True)
class CouncilRow:
    """A member of the council."""

    peer_id: str
    me: bool
    is_genesis: bool
    """True if the manifest names it as a validator."""
    seats: int
    """Votes that it has."""
    since_epoch: int
    """Epoch of the page that seated it; -1 for the genesis."""
    since_at: float
    """Unix time of that epoch, or of the run's creation."""
    vote_epoch: int
    """Newest epoch of its votes and pages; -1 without any."""
    vote_age_seconds: float | None
    """Time since the start of that epoch; None without a vote."""
    is_absent: bool
    """True if it misses the votes of the last epochs."""
    is_silent: bool
    """True if it has sent nothing for so long that the others may remove it."""
    evidence: str
    """Proven misbehaviour, for which it is removed; else empty."""
    name: str = ""
    """Name in its record."""


@dataclass(frozen=True, slots=True)
class CouncilPage(CouncilSummary):
    """The summary with the members by peer id."""

    members: tuple[CouncilRow, ...] = ()
    no_seat: str = ""
    """Reason why this node has no seat; empty if it has one."""

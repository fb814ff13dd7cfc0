"""Contributors of a run: the work and the credit of each key, as final pages count them.

The figures follow from final pages alone. They are the same on every node that has followed the
same pages, and a restart changes none of them.
"""

from dataclasses import dataclass, field

SHOWN_MAX = 100
"""Contributors listed in a view; ``ContributorsPage.total`` counts all."""


@dataclass(frozen=True, slots=True)
class ContributorRow:
    """Work and credit of one key."""

    rank: int
    """From 1, by credit; equal ones by peer id."""
    peer_id: str
    me: bool
    name: str = ""
    """Name in its record, neither unique nor verified; empty if it is not on the roster."""
    rollouts: int = 0
    """Certified rollouts."""
    tokens: int = 0
    """Tokens of these rollouts."""
    checks: int = 0
    """Decided rollouts to which it gave a verdict that counted."""
    steps: int = 0
    """Final versions that it published."""
    credit_share: float = 0.0
    """Share of the credit of all keys, from 0 to 1."""
    unlocked: int = 0
    """Credit that no later fault can take away."""
    locked: int = 0
    """Credit that a proven fault still forfeits."""
    since_epoch: int = 0
    since_at: float = 0.0
    """Start of the epoch of the first final page that names it, unix seconds."""
    slashed_epoch: int = -1
    """Epoch of the page that slashed it; -1 for none."""


@dataclass(frozen=True, slots=True)
class OwnWork:
    """Work of this node: by final pages, except for the fields that say otherwise."""

    certified: int = 0
    tokens: int = 0
    trained: int = 0
    """Certified rollouts that final versions learned from."""
    checks: int = 0
    steps: int = 0
    credit_share: float = 0.0
    unlocked: int = 0
    locked: int = 0
    forfeited: int = 0
    """Credit lost by a proven fault."""
    rank: int = 0
    """Rank among all contributors; 0 before final pages count any work of this node."""
    contributors: int = 0
    slashed: bool = False
    """True if a final page, or a message that this node holds, proves a fault of this node."""
    waiting: int = 0
    """Commits without an outcome in a final page, unless this node knows that they were rejected
    or have expired."""
    rejected: int = 0
    """Rejected rollouts by final pages, or by the certificates known to this node if they show
    more."""
    rejected_reasons: dict[str, int] = field(default_factory=dict)
    """Reasons of the rejected rollouts known to this node, which forgets old ones."""
    expired: int = 0
    """Expired commits known to this node; final pages name none."""
    skipped: int = 0
    """Training slots that it left out, or whose rollouts expired."""
    unpaid: int = 0
    """Certified rollouts that earned nothing, because it had left out too many slots."""

    @property
    def committed(self) -> int:
        """All commits of this node that any of the counts includes."""
        return self.certified + self.waiting + self.rejected + self.expired


@dataclass(frozen=True, slots=True)
class ContributorsPage:
    """The first ``SHOWN_MAX`` contributors by credit, and the totals of the run."""

    rows: tuple[ContributorRow, ...] = ()
    own: ContributorRow | None = None
    """Row of this node, also if it is not among the first; None without counted work."""
    yours: OwnWork = field(default_factory=OwnWork)
    total: int = 0
    """Number of contributors."""
    rollouts: int = 0
    tokens: int = 0
    steps: int = 0
    credit: int = 0
    """Totals of the whole run."""
    slashed: int = 0
    """Slashed keys by final pages."""
    epoch: int = -1
    """Epoch of the newest final page that is counted; -1 before the first."""

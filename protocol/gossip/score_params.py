"""The numbers of peer scoring, each with its reason.

"spec" is libp2p ``pubsub/gossipsub/gossipsub-v1.1.md``, section "Peer Scoring"; "go" is
go-libp2p-pubsub v0.10.0 (``score.go``, ``score_params.go``). Neither has defaults for weights: they
depend on the traffic. Ours: five topics, all of the same weight, with hundreds of messages a minute
together, and some of them silent for minutes. So credit is small, and breaches cost much more.
"""

from dataclasses import dataclass, field


def decay(seconds: float) -> float:
    """Return the factor per second that leaves one hundredth of a counter after ``seconds``."""
    return float(0.01 ** (1 / seconds))


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicScoreParams:
    """P1 to P4, the same for each topic; a weight of 0 turns its part off."""

    weight: float = 1.0
    """Of the topic in the sum; no topic of ours is worth more than another one."""

    mesh_seconds_quantum: float = 1.0
    """P1 counts whole quanta."""
    mesh_quanta_max: float = 3600.0
    """An hour in our mesh is as good as two."""
    mesh_time_weight: float = 0.005 / 3600
    """P1: at most 0.005. It tells an old member from a stranger, and is worth no message."""

    first_deliveries_weight: float = 0.05
    """P2: at most 2; who brings news is what keeps us in touch."""
    first_deliveries_max: float = 40.0
    """A guess: what one of six mesh peers brings in ten minutes of 25 messages a minute."""
    first_deliveries_decay: float = decay(600.0)

    mesh_deliveries_weight: float = 0.0
    """P3: off. A topic that is silent for minutes makes everybody look as if they withheld; peers
    that do withhold earn no P2 and are outdone by opportunistic grafts."""
    mesh_deliveries_decay: float = decay(600.0)
    mesh_deliveries_max: float = 40.0
    mesh_deliveries_threshold: float = 4.0
    """Where P3 is on: below this the square of what is missing counts."""
    mesh_deliveries_activation_seconds: float = 300.0
    """In the mesh before P3 counts."""
    mesh_deliveries_window_seconds: float = 2.0
    """How long after we accepted a message a copy still counts; a relay waits less."""

    mesh_failure_weight: float = 0.0
    """P3b: off, as P3."""
    mesh_failure_decay: float = decay(600.0)

    invalid_weight: float = -10.0
    """P4, squared. One invalid message ends a stranger's place in the mesh, two anybody's, and
    gossip with it, three what we flood, four everything. Honest peers relay none."""
    invalid_decay: float = decay(600.0)
    """As faults are counted for ten minutes elsewhere: software is mended."""

    @property
    def withholding_counts(self) -> bool:
        """Whether P3 or P3b is on."""
        return self.mesh_deliveries_weight < 0 or self.mesh_failure_weight < 0

    def __post_init__(self) -> None:
        """Check the ranges; raises ``ValueError``."""
        _check_decays(
            self.first_deliveries_decay,
            self.mesh_deliveries_decay,
            self.mesh_failure_decay,
            self.invalid_decay,
        )
        if self.weight < 0 or self.mesh_time_weight < 0 or self.first_deliveries_weight < 0:
            raise ValueError("credit has no negative weight")
        if max(self.mesh_deliveries_weight, self.mesh_failure_weight, self.invalid_weight) > 0:
            raise ValueError("a penalty has no positive weight")
        if self.mesh_seconds_quantum <= 0:
            raise ValueError("need a quantum")
        if self.mesh_deliveries_max < self.mesh_deliveries_threshold:
            raise ValueError("need mesh_deliveries_threshold <= mesh_deliveries_max")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreParams:
    """What a peer's score is made of, and how fast it is forgotten; times in seconds."""

    topic: TopicScoreParams = field(default_factory=TopicScoreParams)
    topics_score_max: float = 11.0
    """TopicScoreCap (spec): the credit of five topics. More topics (subnets) add no more, so credit
    outweighs one invalid message and not two."""

    colocation_weight: float = -1.0
    """P6, squared."""
    colocated_peers_max: int = 32
    """A guess: nodes of one laboratory behind one address. From 36 on they get no gossip, from 41
    on nothing: four times fewer than it takes to fill our connections."""

    behaviour_weight: float = -5.0
    """P7, squared."""
    behaviour_threshold: float = 3.0
    """Breaches forgiven; a guess. A lost frame or a slow line breaks a promise now and then."""
    behaviour_decay: float = decay(600.0)

    decay_seconds: float = 30.0
    """Between two decays, whose factors are per second (go has 1 s, and factors per interval). What
    takes ten minutes needs no finer steps, and with 1 s it was a tenth of a node's work."""
    decay_to_zero: float = 0.01
    """go ``DefaultDecayToZero``: a counter below is 0."""
    retain_seconds: float = 600.0
    """For as long as P4 and P7 take to decay, leaving and coming back cleans nobody."""
    retained_max: int = 4096
    """As many as are kept away by their faults; the least bad are forgotten first."""
    addresses_per_peer_max: int = 8
    """A guess: addresses of one peer that count for P6."""

    promise_seconds: float = 3.0
    """go ``GossipSubIWantFollowupTime``: for one message asked for to come."""
    promises_max: int = 4096
    """A guess: waited for at a time; the oldest are forgotten, nobody blamed."""
    judged_max: int = 8192
    """A guess: judged messages whose late copies count; twenty minutes at 400 a minute."""

    def __post_init__(self) -> None:
        """Check the ranges; raises ``ValueError``."""
        _check_decays(self.behaviour_decay)
        if max(self.colocation_weight, self.behaviour_weight) > 0:
            raise ValueError("a penalty has no positive weight")
        if self.decay_seconds <= 0 or not 0 < self.decay_to_zero < 1:
            raise ValueError("need a decay interval, and 0 < decay_to_zero < 1")
        if min(self.retained_max, self.promises_max, self.judged_max) < 1:
            raise ValueError("a table has room for one at least")


def _check_decays(*factors: float) -> None:
    if not all(0 < factor < 1 for factor in factors):
        raise ValueError("need 0 < decay < 1")

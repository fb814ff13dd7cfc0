"""Every constant of the router, with its source.

"spec" is libp2p ``pubsub/gossipsub/gossipsub-v1.0.md`` or ``-v1.1.md``, section "Parameters"; "go"
is the default in go-libp2p-pubsub v0.10.0 (``gossipsub.go``).

The numbers of peer scoring, each with its reason.

"spec" is libp2p ``pubsub/gossipsub/gossipsub-v1.1.md``, section "Peer Scoring"; "go" is
go-libp2p-pubsub v0.10.0 (``score.go``, ``score_params.go``). Neither has defaults for weights: they
depend on the traffic. Ours: five topics, all of the same weight, with hundreds of messages a minute
together, and some of them silent for minutes. So credit is small, and breaches cost much more.
"""

from dataclasses import dataclass, field

from protocol.gossipsub.rpc import RPC_BYTES_MAX


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


ENVELOPE_BYTES_MAX = 512
"""What an RPC with one message adds to its data: 46 + 66 + 10 bytes, a topic of 128, lengths."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """GossipSub parameters; times in seconds, sizes in bytes."""

    mesh_size: int = 6
    """D (spec): the desired number of mesh peers per topic."""
    mesh_low: int = 5
    """D_low (go; the spec says 4): graft below."""
    mesh_high: int = 12
    """D_high (spec): a mesh this full takes nobody, and is pruned at the next heartbeat."""
    mesh_keep_by_score: int = 4
    """D_score (spec): when pruning, keep this many best-scored peers, the rest at random."""
    mesh_outbound: int = 2
    """D_out (spec): of the mesh, as many that we have dialled, if there are."""
    mesh_standing: int = 2
    """Of the mesh, as many with standing, if there are: a guess. Where strangers fill the meshes a
    message comes over one way only, and what is lost on it comes late."""
    lazy_peers: int = 3
    """D_lazy (the spec says 6): IHAVE goes to at least this many peers outside the mesh."""
    flood_peers_max: int = 64
    """Peers that an own message is sent to (spec: all), twice the connections that a node wants.

    Whom 480 strangers are connected to sent 480 copies: 0.15 s of a home's upload, during which
    nothing else left it. nim-libp2p bounds them by what it takes a line to be capable of."""
    gossip_factor: float = 0.05
    """Share of the peers outside the mesh that get IHAVE, when that is more (the spec says 0.25).

    Three peers for three heartbeats offer every node each message nine times on average, so one in
    eight thousand hears of it by its mesh only. With the specification's numbers and some fifty
    connections it was thirty times, in more RPCs and bytes than the messages themselves took."""

    heartbeat_seconds: float = 1.0
    """spec; the driver sends one ``Heartbeat`` event per interval."""
    relay_wait_seconds: float = 0.0
    """A relayed message waits a random part of this (spec: not at all) for peers that have it."""
    history_windows: int = 5
    """mcache_len (spec): heartbeats for which a message can be served."""
    gossip_windows: int = 3
    """mcache_gossip (spec): heartbeats for which a message is advertised."""
    seen_seconds: float = 120.0
    """seen_ttl (spec)."""
    prune_backoff_seconds: int = 60
    """spec v1.1: no GRAFT to a pruned peer before, in both directions."""
    unsubscribe_backoff_seconds: int = 10
    """go ``GossipSubUnsubscribeBackoff``: the same when the reason was our leaving the topic."""
    graft_flood_seconds: float = 10.0
    """go ``GossipSubGraftFloodThreshold``: a GRAFT so soon after the PRUNE is two breaches."""
    seek_seconds_max: int = 240
    """Until a mesh asks again for members with standing, or that it has dialled, while all that
    take it leave it out soon; a guess. In a hundred nodes of which few had standing, asking every
    minute was a third of all meshes' changes (``churn-100``)."""
    backoff_seconds_max: int = 3600
    """A guess: what a peer may ask of us at most, so a huge number cannot bar it for ever."""
    backoff_slack_seconds: float = 1.0
    """A heartbeat: clocks and queues differ, and grafting a moment too early is punished (spec)."""

    ihave_ids_max: int = 5000
    """go ``MaxIHaveLength``: ids in one IHAVE, and asked of one peer per heartbeat."""
    ihave_messages_max: int = 10
    """go ``MaxIHaveMessages``: IHAVEs heeded from one peer per heartbeat."""
    iwant_serves_max: int = 3
    """go ``GossipRetransmission``: times one message is served to one peer."""
    iwant_reply_bytes_max: int = 4 << 20
    """A guess: bytes served to one peer per heartbeat, so IWANT cannot drain the uplink."""
    iwant_stranger_bytes_max: int = 4 << 20
    """A guess: of all peers without standing per heartbeat, in equal parts of those that ask in it
    or did in the last one. Four hundred that ask for all that went round have 10 KB each."""
    asked_max: int = 50_000
    """A guess: ids asked of all peers per heartbeat; ten peers at their limit."""
    asked_stranger_ids_max: int = 1000
    """A guess: of all peers without standing, in equal parts of those that offer something in it or
    did in the last one. They are 46 KB of our line; of four hundred that offer what nobody has, two
    each, and what a newcomer sends for as many delays nothing else that it says."""

    rpc_fields_max: int = 8192
    """Fields of RPCs read of one peer per heartbeat, and one for each RPC; those of single messages
    and of plain IHAVEs do not count: what says little and takes long to read. Who asks for all that
    it was offered sends ``ihave_ids_max``, and who connects to a run with all its subnets three for
    each topic; in two minutes of ``churn-100`` it is 43 at most."""

    message_bytes_max: int = 16 << 10
    """The data of one message; bodies travel by digest."""
    peers_max: int = 512
    """The high-water mark of p2pd's connection manager."""
    topics_per_peer_max: int = 256
    """A guess: remembered subscriptions of one peer; a run has five topics or its subnets."""
    topics_max: int = 256
    """A guess: our own subscriptions."""
    backoffs_max: int = 1 << 14
    """A guess: back-offs remembered, also of peers that left; the oldest leave first."""
    pending_max: int = 1024
    """A guess: messages at the application validator; more are dropped and come again by IHAVE."""
    seen_max: int = 1 << 17
    """500 messages/s for 120 s is 60,000; at twice that the oldest leave early."""
    cache_bytes_max: int = 64 << 20
    """A guess: message bodies kept for IWANT; 500/s of 16 KiB for 5 s is 40 MiB."""

    score: ScoreParams = field(default_factory=ScoreParams)
    """What scores are made of; the thresholds below are in its units."""
    gossip_score_min: float = -10.0
    """gossipThreshold (spec v1.1): below no IHAVE or IWANT. One invalid message, no credit."""
    publish_score_min: float = -50.0
    """publishThreshold (same): below no flood-published messages. Three, with all credit."""
    graylist_score_min: float = -80.0
    """graylistThreshold (same): below every RPC is ignored. Four, with all credit."""
    opportunistic_score_min: float = 0.05
    """opportunisticGraftThreshold (same): a mesh whose median is below takes better peers. One
    message brought first, or more than time in the meshes of five topics is worth: whoever is only
    there does not reach it. At 0.25 a swarm of a hundred with a message a second kept larger meshes
    for nothing, and sent a tenth more."""
    opportunistic_graft_seconds: float = 60.0
    """spec: a minute between the looks."""
    opportunistic_graft_peers: int = 2
    """spec: taken at a time."""

    def __post_init__(self) -> None:
        """Check the relations between the numbers; raises ``ValueError``."""
        if not 1 <= self.mesh_low <= self.mesh_size <= self.mesh_high:
            raise ValueError("need 1 <= mesh_low <= mesh_size <= mesh_high")
        if not 0 <= self.mesh_keep_by_score <= self.mesh_size:
            raise ValueError("need 0 <= mesh_keep_by_score <= mesh_size")
        if not 0 <= self.mesh_outbound <= self.mesh_size - self.mesh_keep_by_score:
            raise ValueError("members that we have dialled need places not given by score")
        if not 1 <= self.gossip_windows <= self.history_windows:
            raise ValueError("need 1 <= gossip_windows <= history_windows")
        if not self.graylist_score_min <= self.publish_score_min <= self.gossip_score_min <= 0:
            raise ValueError("need graylist <= publish <= gossip <= 0")
        if self.opportunistic_score_min < 0:
            raise ValueError("need 0 <= opportunistic_score_min")
        if not 1 <= self.message_bytes_max <= RPC_BYTES_MAX - ENVELOPE_BYTES_MAX:
            raise ValueError("a message and its envelope must fit one RPC")
        if not 0 <= self.relay_wait_seconds <= self.heartbeat_seconds:
            raise ValueError("need 0 <= relay_wait_seconds <= heartbeat_seconds")
        if self.seen_seconds <= self.history_windows * self.heartbeat_seconds:
            raise ValueError("a message must be remembered longer than it is served")

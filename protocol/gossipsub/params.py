"""Parameters of the router and of peer scoring, with the source of each.

"spec" is libp2p ``pubsub/gossipsub/gossipsub-v1.0.md`` or ``-v1.1.md``, sections "Parameters" and
"Peer Scoring". "go" is the default in go-libp2p-pubsub v0.10.0 (``gossipsub.go``, ``score.go``,
``score_params.go``).

Neither has defaults for score weights: they depend on the traffic. Ours: five topics of equal
weight, with hundreds of messages a minute together, some of them silent for minutes. So positive
scores are small, and violations cost much more.
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
    """Weight of the topic in the sum; all our topics are equal."""

    mesh_seconds_quantum: float = 1.0
    """P1 counts whole quanta."""
    mesh_quanta_max: float = 3600.0
    """P1 stops growing after an hour in our mesh."""
    mesh_time_weight: float = 0.005 / 3600
    """P1: at most 0.005. It separates old members from new ones, and is less than one message."""

    first_deliveries_weight: float = 0.05
    """P2: at most 2; peers that deliver new messages keep us connected."""
    first_deliveries_max: float = 40.0
    """A guess: first deliveries of one of six mesh peers in ten minutes of 25 messages a minute."""
    first_deliveries_decay: float = decay(600.0)

    mesh_deliveries_weight: float = 0.0
    """P3: off. On a topic that is silent for minutes all peers would seem to withhold. Peers that
    do withhold earn no P2, and opportunistic grafts replace them."""
    mesh_deliveries_decay: float = decay(600.0)
    mesh_deliveries_max: float = 40.0
    mesh_deliveries_threshold: float = 4.0
    """If P3 is on: below this the square of the deficit counts."""
    mesh_deliveries_activation_seconds: float = 300.0
    """Time in the mesh before P3 counts."""
    mesh_deliveries_window_seconds: float = 2.0
    """Time after our acceptance in which a copy still counts; forwarding waits less."""

    mesh_failure_weight: float = 0.0
    """P3b: off, like P3."""
    mesh_failure_decay: float = decay(600.0)

    invalid_weight: float = -10.0
    """P4, squared. One invalid message removes a peer without credit from the mesh; two remove any
    peer and end its gossip, three end our floods, four everything. Honest peers forward none."""
    invalid_decay: float = decay(600.0)
    """Ten minutes, as for faults elsewhere: software gets fixed."""

    @property
    def withholding_counts(self) -> bool:
        """True if P3 or P3b is on."""
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
            raise ValueError("a weight of credit must not be negative")
        if max(self.mesh_deliveries_weight, self.mesh_failure_weight, self.invalid_weight) > 0:
            raise ValueError("a weight of a penalty must not be positive")
        if self.mesh_seconds_quantum <= 0:
            raise ValueError("need mesh_seconds_quantum > 0")
        if self.mesh_deliveries_max < self.mesh_deliveries_threshold:
            raise ValueError("need mesh_deliveries_threshold <= mesh_deliveries_max")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreParams:
    """Weights, decays and limits of a peer's score; times in seconds."""

    topic: TopicScoreParams = field(default_factory=TopicScoreParams)
    topics_score_max: float = 11.0
    """TopicScoreCap (spec): the credit of five topics. More topics (subnets) add no more, so credit
    outweighs one invalid message and not two."""

    colocation_weight: float = -1.0
    """P6, squared."""
    colocated_peers_max: int = 32
    """A guess: nodes of one laboratory behind one address. From 36 on they get no gossip, from 41
    on nothing: four times fewer than fill our connections."""

    behaviour_weight: float = -5.0
    """P7, squared."""
    behaviour_threshold: float = 3.0
    """Violations forgiven; a guess. A lost frame or a slow uplink breaks a promise now and then."""
    behaviour_decay: float = decay(600.0)

    decay_seconds: float = 30.0
    """Time between two decays by factors per second (go: 1 s, and factors per interval). Ten-minute
    decays need no finer steps, and with 1 s they took a tenth of a node's CPU time."""
    decay_to_zero: float = 0.01
    """go ``DefaultDecayToZero``: a counter below is 0."""
    retain_seconds: float = 600.0
    """As long as P4 and P7 take to decay, so that reconnecting does not clear a score."""
    retained_max: int = 4096
    """As many as can be banned for faults; the best scores are forgotten first."""
    addresses_per_peer_max: int = 8
    """A guess: addresses of one peer that count for P6."""

    promise_seconds: float = 3.0
    """go ``GossipSubIWantFollowupTime``: deadline of a requested message."""
    promises_max: int = 4096
    """A guess: tracked promises; the oldest are forgotten without a penalty."""
    judged_max: int = 8192
    """A guess: judged messages, to count their late copies; twenty minutes at 400 a minute."""

    def __post_init__(self) -> None:
        """Check the ranges; raises ``ValueError``."""
        _check_decays(self.behaviour_decay)
        if max(self.colocation_weight, self.behaviour_weight) > 0:
            raise ValueError("a weight of a penalty must not be positive")
        if self.decay_seconds <= 0 or not 0 < self.decay_to_zero < 1:
            raise ValueError("need a decay interval, and 0 < decay_to_zero < 1")
        if min(self.retained_max, self.promises_max, self.judged_max) < 1:
            raise ValueError("need a limit of at least 1 for every table")


def _check_decays(*factors: float) -> None:
    if not all(0 < factor < 1 for factor in factors):
        raise ValueError("need 0 < decay < 1")


ENVELOPE_BYTES_MAX = 512
"""Overhead of an RPC with one message: 46 + 66 + 10 bytes, a topic of 128, lengths."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """GossipSub parameters; times in seconds, sizes in bytes."""

    mesh_size: int = 6
    """D (spec): the desired number of mesh peers per topic."""
    mesh_low: int = 5
    """D_low (go; the spec says 4): graft below."""
    mesh_high: int = 12
    """D_high (spec): a mesh this full accepts no GRAFT, and is pruned at the next heartbeat."""
    mesh_keep_by_score: int = 4
    """D_score (spec): when pruning, keep this many best-scored peers, the rest at random."""
    mesh_outbound: int = 2
    """D_out (spec): minimum of outbound peers in a mesh, if there are."""
    mesh_trusted_min: int = 2
    """Minimum of trusted peers in a mesh, if there are: a guess. If untrusted peers fill the
    meshes, a message arrives over one path only, and a loss there delays it."""
    lazy_peers: int = 3
    """D_lazy (the spec says 6): IHAVE goes to at least this many peers outside the mesh."""
    flood_peers_max: int = 64
    """Peers that an own message is sent to (spec: all), twice a node's target for connections.

    A node with 480 untrusted connections sent 480 copies: 0.15 s of a home uplink, during which
    nothing else was sent. nim-libp2p bounds the number by an estimate of the uplink's bandwidth."""
    gossip_factor: float = 0.05
    """Share of the peers outside the mesh that get IHAVE, if that is more (the spec says 0.25).

    Three peers for three heartbeats advertise each message to every node nine times on average, so
    one in eight thousand receives it by its mesh only. With the specification's numbers and some
    fifty connections it was thirty times, in more RPCs and bytes than the messages took."""

    heartbeat_seconds: float = 1.0
    """spec; the driver sends one ``Heartbeat`` event per interval."""
    relay_wait_seconds: float = 0.0
    """Maximum of the random wait before forwarding (spec: none), during which peers may send it."""
    history_windows: int = 5
    """mcache_len (spec): heartbeats for which a message can be served."""
    gossip_windows: int = 3
    """mcache_gossip (spec): heartbeats for which a message is advertised."""
    seen_seconds: float = 120.0
    """seen_ttl (spec)."""
    prune_backoff_seconds: int = 60
    """spec v1.1: minimum time before a GRAFT after a PRUNE, in both directions."""
    unsubscribe_backoff_seconds: int = 10
    """go ``GossipSubUnsubscribeBackoff``: the same if we left the topic."""
    graft_flood_seconds: float = 10.0
    """go ``GossipSubGraftFloodThreshold``: a GRAFT so soon after the PRUNE is two violations."""
    seek_seconds_max: int = 240
    """Maximum wait between searches for trusted or outbound mesh members, while those that accept
    drop it again soon; a guess. In a hundred nodes with few trusted ones, a search every minute was
    a third of all mesh changes (``churn-100``)."""
    backoff_seconds_max: int = 3600
    """A guess: maximum backoff that a peer may request; a huge number cannot block it forever."""
    backoff_slack_seconds: float = 1.0
    """A heartbeat: clocks and queues differ, and grafting a moment too early is penalised
    (spec)."""

    ihave_ids_max: int = 5000
    """go ``MaxIHaveLength``: ids in one IHAVE, and requested from one peer per heartbeat."""
    ihave_messages_max: int = 10
    """go ``MaxIHaveMessages``: IHAVEs processed per peer and heartbeat."""
    iwant_serves_max: int = 3
    """go ``GossipRetransmission``: times one message is served to one peer."""
    iwant_reply_bytes_max: int = 4 << 20
    """A guess: bytes served to one peer per heartbeat, so that IWANT cannot exhaust the uplink."""
    iwant_untrusted_bytes_max: int = 4 << 20
    """A guess: bytes served to all untrusted peers per heartbeat, in equal shares of those that
    request now or did in the last one. Four hundred that request every message have 10 KB each."""
    asked_max: int = 50_000
    """A guess: ids requested from all peers per heartbeat; ten peers at their limit."""
    iwant_untrusted_ids_max: int = 1000
    """A guess: ids requested from all untrusted peers per heartbeat, in equal shares of those that
    advertise now or did in the last one. The requests are 46 KB of our uplink; of four hundred
    peers that advertise false ids each gets two. The replies to as many delay nothing else on a
    stream."""

    rpc_fields_max: int = 8192
    """Fields read one by one from a peer's RPCs per heartbeat, plus one per RPC; single messages
    and plain IHAVEs do not count. It limits small but slow RPCs. A peer that requests everything
    advertised to it sends ``ihave_ids_max``. One that joins a run with all its subnets sends three
    for each topic; in two minutes of ``churn-100`` it is 43 at most."""

    message_bytes_max: int = 16 << 10
    """The data of one message; bodies are fetched by digest."""
    peers_max: int = 512
    """The high-water mark of p2pd's connection manager."""
    topics_per_peer_max: int = 256
    """A guess: remembered subscriptions of one peer; a run has five topics or its subnets."""
    topics_max: int = 256
    """A guess: our own subscriptions."""
    backoffs_max: int = 1 << 14
    """A guess: remembered backoffs, also of disconnected peers; the oldest are evicted."""
    pending_max: int = 1024
    """A guess: messages in validation; more are dropped and recovered by IHAVE."""
    seen_max: int = 1 << 17
    """500 messages/s for 120 s is 60,000; at twice that the oldest are evicted early."""
    cache_bytes_max: int = 64 << 20
    """A guess: cached messages for IWANT; 500/s of 16 KiB for 5 s is 40 MiB."""

    score: ScoreParams = field(default_factory=ScoreParams)
    """Score parameters; the thresholds below are in its units."""
    gossip_score_min: float = -10.0
    """gossipThreshold (spec v1.1): below it no IHAVE or IWANT. One invalid message, no credit."""
    publish_score_min: float = -50.0
    """publishThreshold (same): below it no flood-published messages. Three, with all credit."""
    graylist_score_min: float = -80.0
    """graylistThreshold (same): below it every RPC is ignored. Four, with all credit."""
    opportunistic_score_min: float = 0.05
    """opportunisticGraftThreshold (same): a mesh with a lower median adds better peers. It is one
    first delivery, or more than time in the meshes of five topics is worth: presence alone does not
    reach it. At 0.25 a swarm of a hundred with one message a second kept larger meshes without
    benefit, and sent 10 % more."""
    opportunistic_graft_seconds: float = 60.0
    """spec: a minute between checks."""
    opportunistic_graft_peers: int = 2
    """spec: peers added at a time."""

    def __post_init__(self) -> None:
        """Check the relations between the numbers; raises ``ValueError``."""
        if not 1 <= self.mesh_low <= self.mesh_size <= self.mesh_high:
            raise ValueError("need 1 <= mesh_low <= mesh_size <= mesh_high")
        if not 0 <= self.mesh_keep_by_score <= self.mesh_size:
            raise ValueError("need 0 <= mesh_keep_by_score <= mesh_size")
        if not 0 <= self.mesh_outbound <= self.mesh_size - self.mesh_keep_by_score:
            raise ValueError("need mesh_outbound + mesh_keep_by_score <= mesh_size")
        if not 1 <= self.gossip_windows <= self.history_windows:
            raise ValueError("need 1 <= gossip_windows <= history_windows")
        if not self.graylist_score_min <= self.publish_score_min <= self.gossip_score_min <= 0:
            raise ValueError("need graylist <= publish <= gossip <= 0")
        if self.opportunistic_score_min < 0:
            raise ValueError("need 0 <= opportunistic_score_min")
        if not 1 <= self.message_bytes_max <= RPC_BYTES_MAX - ENVELOPE_BYTES_MAX:
            raise ValueError("a message with its envelope must fit one RPC")
        if not 0 <= self.relay_wait_seconds <= self.heartbeat_seconds:
            raise ValueError("need 0 <= relay_wait_seconds <= heartbeat_seconds")
        if self.seen_seconds <= self.history_windows * self.heartbeat_seconds:
            raise ValueError("need seen_seconds > history_windows * heartbeat_seconds")

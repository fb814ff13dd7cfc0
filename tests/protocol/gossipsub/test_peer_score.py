"""Each component of the score against plain sums, and the limits of the tables."""

import itertools
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.core.containers import table_sizes
from protocol.core.rng import Rng
from protocol.core.types import PeerId
from protocol.gossipsub.gossip import Promises
from protocol.gossipsub.params import Params, ScoreParams, TopicScoreParams
from protocol.gossipsub.peer_score import Deliveries, Scores, no_opinions

PEER, OTHER = PeerId("peer"), PeerId("other")
TOPIC = "t"

OFF = TopicScoreParams(mesh_time_weight=0.0, first_deliveries_weight=0.0, invalid_weight=0.0)
"""P1 to P4 off: each test turns one on."""


def scores(opinions=no_opinions, *, topic=OFF, **params):
    """Return scores that know PEER, starting at time 0, without a cap unless given."""
    made = Scores(
        ScoreParams(topic=topic, **{"topics_score_max": 1e9, "decay_seconds": 1.0, **params}),
        opinions,
    )
    made.heartbeat(0.0)
    made.connect(PEER, 0.0)
    return made


@dataclass
class Model:
    """One peer in one topic as in the specification, second by second."""

    params: TopicScoreParams
    now: int = 0
    since: int | None = None
    active: bool = False
    quanta: int = 0
    first: float = 0.0
    mesh: float = 0.0
    failures: float = 0.0
    invalid: float = 0.0

    def deficit(self):
        missing = self.params.mesh_deliveries_threshold - self.mesh
        return missing if self.active and missing > 0 else 0.0

    def do(self, what):
        if what == "second":
            self.second()
        elif what == "graft":
            self.since, self.active, self.quanta = self.now, False, 0
        elif what == "prune" and self.since is not None:
            self.failures += self.deficit() ** 2
            self.since, self.active = None, False
        elif what == "first":
            self.first = min(self.params.first_deliveries_max, self.first + 1)
        elif what == "invalid":
            self.invalid += 1
        if what in ("first", "mesh") and self.since is not None:
            self.mesh = min(self.params.mesh_deliveries_max, self.mesh + 1)

    def second(self):
        self.now += 1
        params = self.params
        self.first = self.zero(self.first * params.first_deliveries_decay)
        self.mesh = self.zero(self.mesh * params.mesh_deliveries_decay)
        self.failures = self.zero(self.failures * params.mesh_failure_decay)
        self.invalid = self.zero(self.invalid * params.invalid_decay)
        if self.since is not None:
            self.quanta = self.now - self.since
            self.active |= self.quanta > params.mesh_deliveries_activation_seconds

    @staticmethod
    def zero(counter):
        return counter if counter >= 0.01 else 0.0

    def score(self):
        params = self.params
        quanta = min(self.quanta, params.mesh_quanta_max) if self.since is not None else 0
        return params.weight * (
            params.mesh_time_weight * quanta
            + params.first_deliveries_weight * self.first
            + params.mesh_deliveries_weight * self.deficit() ** 2
            + params.mesh_failure_weight * self.failures
            + params.invalid_weight * self.invalid**2
        )


def do(made, what, now, peer=PEER):
    {
        "second": lambda: made.heartbeat(now),
        "graft": lambda: made.grafted(peer, TOPIC, now),
        "prune": lambda: made.pruned(peer, TOPIC),
        "first": lambda: made.first_delivery(peer, TOPIC),
        "mesh": lambda: made.mesh_delivery(peer, TOPIC),
        "invalid": lambda: made.invalid(peer, TOPIC),
    }[what]()


SHORT = replace(
    OFF,
    weight=0.5,
    mesh_quanta_max=5.0,
    first_deliveries_max=4.0,
    first_deliveries_decay=0.7,
    mesh_deliveries_max=6.0,
    mesh_deliveries_threshold=3.0,
    mesh_deliveries_activation_seconds=2.0,
    mesh_deliveries_decay=0.8,
    mesh_failure_decay=0.5,
    invalid_decay=0.9,
)
"""Limits that a short history reaches."""

ONE_ON = {
    "P1": {"mesh_time_weight": 0.3},
    "P2": {"first_deliveries_weight": 2.0},
    "P3": {"mesh_deliveries_weight": -1.0},
    "P3b": {"mesh_failure_weight": -1.0},
    "P4": {"invalid_weight": -7.0},
}


@pytest.mark.parametrize("part", [*ONE_ON, "all"])
@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from(["second", "second", "graft", "prune", "first", "mesh", "invalid"]))
)
def test_a_topic_s_parts_are_those_of_a_plain_model(part, history):
    on = (
        ONE_ON[part]
        if part in ONE_ON
        else {k: v for one in ONE_ON.values() for k, v in one.items()}
    )
    params = replace(SHORT, **on)
    made, model = scores(topic=params), Model(params)
    for what in history:
        model.do(what)
        do(made, what, float(model.now))
        assert made(PEER) == pytest.approx(model.score())


BOUNDS = (-40.0, -5.0, -1.0, 0.0)

WHO = st.sampled_from([PEER, OTHER])
STEPS = st.one_of(
    st.tuples(
        st.sampled_from(["graft", "prune", "first", "mesh", "invalid", "breach", "leave", "come"]),
        WHO,
    ),
    st.tuples(st.just("second"), st.integers(0, 3)),
    st.tuples(st.just("place"), WHO, st.lists(st.sampled_from("xyz"), max_size=2)),
    st.tuples(st.just("opinion"), WHO, st.sampled_from([-30.0, -0.1, 0.0, 2.0])),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(STEPS, max_size=30))
def test_who_is_below_a_bound_is_known_without_a_look_at_all(steps):
    """The shortcut must not hide a score that fell between two heartbeats, for any reason."""
    opinions, now = {}, 0.0
    topic = replace(SHORT, **{name: one for part in ONE_ON.values() for name, one in part.items()})
    made = scores(
        lambda: opinions,
        topic=topic,
        behaviour_threshold=1.0,
        colocated_peers_max=1,
        colocation_weight=-2.0,
    )
    made.connect(OTHER, 0.0)
    here = {PEER, OTHER}
    for what, *rest in steps:
        if what == "second":
            now += rest[0]
            made.heartbeat(now)
        elif what == "place":
            made.place(*rest)
        elif what == "opinion":
            opinions[rest[0]] = rest[1]
        elif what == "leave":
            made.disconnect(rest[0], now)
            here -= {rest[0]}
        elif what == "come":
            made.connect(rest[0], now)
            here |= {rest[0]}
        elif what == "breach":
            made.breach(rest[0])
        else:
            do(made, what, now, rest[0])
        for peer, bound in itertools.product(here, BOUNDS):
            assert made.below(peer, bound) == (made(peer) < bound)
        assert all(made.any_below(made(peer) + 1e-9) for peer in here if made(peer) < 0)


def test_the_application_s_opinion_counts_from_a_heartbeat_on_and_of_untrusted_peers_at_once():
    opinion = {PEER: 2.0, OTHER: -3.0}
    made = scores(lambda: opinion)
    made.breach(PEER, 4)
    assert (made(PEER), made(OTHER)) == (-3.0, -3.0)
    opinion[PEER], opinion[OTHER] = 7.0, 1.0
    assert (made(PEER), made(OTHER)) == (-3.0, 1.0)
    made.heartbeat(0.0)
    assert made(PEER) == 2.0


@given(st.lists(st.integers(1, 9), max_size=20), st.integers(0, 4))
def test_breaches_beyond_the_threshold_count_squared_and_decay(waits, threshold):
    made = scores(behaviour_weight=-2.0, behaviour_threshold=threshold, behaviour_decay=0.9)
    counter, now = 0.0, 0
    for wait in waits:
        made.breach(PEER)
        counter += 1
        assert made(PEER) == pytest.approx(-2.0 * max(0.0, counter - threshold) ** 2)
        now += wait
        made.heartbeat(float(now))
        for _ in range(wait):
            counter = Model.zero(counter * 0.9)
        assert made(PEER) == pytest.approx(-2.0 * max(0.0, counter - threshold) ** 2)


@given(
    st.lists(
        st.tuples(st.integers(0, 5), st.lists(st.sampled_from(["a", "b", "c"]), max_size=4)),
        max_size=20,
    )
)
def test_peers_that_share_an_address_count_squared_beyond_so_many(places):
    made = scores(colocated_peers_max=1, colocation_weight=-3.0)
    at = {}
    for number, addresses in places:
        peer = PeerId(str(number))
        if addresses:
            made.connect(peer, 0)
            made.place(peer, addresses)
            at[peer] = set(addresses)
        else:
            made.disconnect(peer, 0)
            at.pop(peer, None)
        for each, known in at.items():
            counts = [sum(address in other for other in at.values()) for address in known]
            assert made(each) == sum(-3.0 * (count - 1) ** 2 for count in counts)


def test_addresses_that_count_are_bounded():
    made = scores(colocated_peers_max=0, colocation_weight=-1.0, addresses_per_peer_max=2)
    made.place(PEER, map(str, range(9)))
    assert made(PEER) == -2


def test_credit_is_capped_and_blame_is_not():
    made = scores(
        topic=replace(OFF, first_deliveries_weight=1.0, invalid_weight=-100.0), topics_score_max=3.0
    )
    for number in range(9):
        made.first_delivery(PEER, str(number))
    assert made(PEER) == 3
    made.invalid(PEER, TOPIC)
    assert made(PEER) == -91


def test_the_numbers_of_five_topics_keep_their_order():
    """Credit never outweighs two invalid messages; mere presence never equals delivering."""
    params, topic = Params(), TopicScoreParams()
    present = 5 * topic.weight * topic.mesh_time_weight * topic.mesh_quanta_max
    delivered = 5 * topic.weight * topic.first_deliveries_weight * topic.first_deliveries_max
    assert present < params.opportunistic_score_min
    assert present + delivered <= params.score.topics_score_max
    most = params.score.topics_score_max
    assert most + topic.invalid_weight * 2**2 < params.gossip_score_min
    assert most + topic.invalid_weight * 3**2 < params.publish_score_min
    assert most + topic.invalid_weight * 4**2 < params.graylist_score_min


def test_time_put_back_decays_nothing_and_goes_on():
    made = scores(topic=replace(OFF, invalid_weight=-1.0, invalid_decay=0.5))
    made.heartbeat(100.0)
    made.invalid(PEER, TOPIC)
    made.heartbeat(50.0)
    assert made(PEER) == -1
    made.heartbeat(50.5)
    assert made(PEER) == -1
    made.heartbeat(51.0)
    assert made(PEER) == -0.25


def test_part_of_an_interval_is_not_lost():
    made = scores(topic=replace(OFF, invalid_weight=-1.0, invalid_decay=0.5))
    made.invalid(PEER, TOPIC)
    for tenths in range(1, 16):
        made.heartbeat(tenths / 10)
    made.heartbeat(2.0)
    assert made(PEER) == pytest.approx(-0.0625)


def test_untrusted_peers_leave_no_trace():
    made = scores()
    made.invalid(OTHER, TOPIC)
    made.breach(OTHER, 100)
    made.place(OTHER, ["a"])
    made.grafted(OTHER, TOPIC, 0)
    made.disconnect(OTHER, 0)
    made.connect(OTHER, 0)
    assert made(OTHER) == 0
    assert made.retained == 0


def test_credit_leaves_with_a_peer_and_blame_stays_with_what_it_owes():
    topic = replace(SHORT, first_deliveries_weight=1.0, mesh_failure_weight=-1.0)
    made = scores(topic=topic)
    made.first_delivery(PEER, TOPIC)
    made.disconnect(PEER, 1)
    made.connect(PEER, 2)
    assert made(PEER) == 0
    made.grafted(PEER, TOPIC, 0)
    made.heartbeat(3.0)
    made.disconnect(PEER, 3)  # from the mesh, with a deficit of three deliveries
    assert made.retained == 1
    made.connect(PEER, 4)
    assert made(PEER) == -4.5


def test_credit_is_not_kept_for_who_is_also_to_blame():
    made = scores(topic=replace(OFF, first_deliveries_weight=1.0, invalid_weight=-10.0))
    made.first_delivery(PEER, TOPIC)
    made.invalid(PEER, TOPIC)
    made.disconnect(PEER, 1)
    made.connect(PEER, 2)
    assert made(PEER) == -10


def test_what_is_retained_ends_also_without_its_peer():
    made = scores(retain_seconds=10.0)
    made.breach(PEER)
    made.disconnect(PEER, 0)
    made.heartbeat(9.0)
    assert made.retained == 1
    made.heartbeat(10.0)
    assert made.retained == 0


def test_the_least_bad_are_forgotten_first():
    made = scores(topic=replace(OFF, invalid_weight=-1.0), retained_max=2)
    for number in (3, 1, 2, 4):
        peer = PeerId(str(number))
        made.connect(peer, 0)
        for _ in range(number):
            made.invalid(peer, TOPIC)
        made.disconnect(peer, 0)
        assert made.retained <= 2
    for number in (1, 2, 3, 4):
        made.connect(PeerId(str(number)), 1)
    assert [made(PeerId(str(number))) for number in (1, 2, 3, 4)] == [0, 0, -9, -16]


def deliveries(**params):
    topic = replace(
        SHORT,
        weight=1.0,
        mesh_deliveries_weight=-1.0,
        mesh_deliveries_decay=0.999999,
        invalid_weight=-100.0,
    )
    made = scores(topic=topic)
    made.connect(OTHER, 0)
    for peer in (PEER, OTHER):
        made.grafted(peer, TOPIC, 0)
    made.heartbeat(3.0)
    assert made(OTHER) == -9
    return made, Deliveries(ScoreParams(topic=topic, **params), made)


@pytest.mark.parametrize(("late", "deficit"), [(2.0, 2), (2.1, 3)])
def test_copies_count_within_the_window_and_once(late, deficit):
    made, brought = deliveries()
    brought.accepted(b"m", TOPIC, [PEER], 10.0)
    for _ in range(3):
        brought.repeated(b"m", TOPIC, PEER, 10.0)
        brought.repeated(b"m", TOPIC, OTHER, 10.0 + late)
    assert (made(PEER), made(OTHER)) == (-4, -(deficit**2))


def test_all_who_brought_a_message_before_its_verdict_delivered_it():
    made, brought = deliveries()
    brought.accepted(b"m", TOPIC, [PEER, OTHER], 10.0)
    assert (made(PEER), made(OTHER)) == (-4, -4)


def test_judged_messages_are_bounded():
    made, brought = deliveries(judged_max=2)
    for message_id in (b"1", b"2", b"3"):
        brought.rejected(message_id, TOPIC, [], 10.0)
    assert table_sizes(brought.tables) == {"delivery_records": 2}
    brought.repeated(b"1", TOPIC, PEER, 11.0)
    assert made(PEER) == -9
    brought.repeated(b"2", TOPIC, PEER, 11.0)
    assert made(PEER) == -109


def test_promises_break_after_their_time_once_and_not_when_somebody_kept_them():
    promises = Promises(ScoreParams(promise_seconds=3.0), Rng(b""))
    promises.add(PEER, [b"1"], 0.0)
    promises.add(PEER, [b"1"], 2.0)  # does not prolong
    promises.add(OTHER, [b"1"], 2.0)
    promises.add(OTHER, [b"2"], 0.0)
    promises.fulfil(b"2")
    assert promises.take_broken(3.0) == []
    assert promises.take_broken(3.1) == [PEER]
    assert promises.take_broken(5.1) == [OTHER]
    assert len(promises) == 0


def test_promises_are_bounded_and_any_of_the_ids_may_be_the_one():
    promises = Promises(ScoreParams(promises_max=3), Rng(b""))
    ids = [bytes([number]) for number in range(50)]
    for _ in range(20):
        promises.add(PEER, ids, 0.0)
    assert len(promises) == 3


@pytest.mark.parametrize(
    "wrong",
    [
        {"weight": -1.0},
        {"invalid_weight": 1.0},
        {"invalid_decay": 1.0},
        {"mesh_seconds_quantum": 0.0},
        {"mesh_deliveries_max": 1.0},
    ],
)
def test_topic_params_check_their_ranges(wrong):
    with pytest.raises(ValueError, match=r"need|weight"):
        TopicScoreParams(**wrong)


@pytest.mark.parametrize(
    "wrong",
    [
        {"behaviour_decay": 0.0},
        {"colocation_weight": 1.0},
        {"decay_to_zero": 1.0},
        {"retained_max": 0},
    ],
)
def test_score_params_check_their_ranges(wrong):
    with pytest.raises(ValueError, match=r"need|weight|room"):
        ScoreParams(**wrong)

from pathlib import Path

from node.api.council import CouncilSummary
from node.api.status import TrafficStatus
from node.api.v1.answers import RolloutCounts
from node.testnet.plan import Options
from node.testnet.poll import StatusSample
from node.testnet.record import SwarmRecord
from tests.node.testnet.testnet_swarms import (
    STARTED_AT,
    checkpoint,
    learned_swarm,
    plans,
    sample,
    status,
)


def swarm() -> SwarmRecord:
    record = SwarmRecord(STARTED_AT)
    for plan in plans(Options(Path("t"))):
        record.add(plan)
    return record


def test_a_killed_node_is_dead_and_its_last_status_is_kept():
    record = swarm()
    node = record.nodes["inference-1"]
    assert node.condition == "waiting"
    record.observe("inference-1", StatusSample(7, True, None))
    assert node.condition == "starting"
    record.observe("inference-1", sample(status(node.plan), pid=7))
    assert node.condition == "running"
    record.observe("inference-1", StatusSample(7, True, None))
    assert node.condition == "silent"
    record.observe("inference-1", StatusSample(7, False, None))
    assert node.condition == "dead"
    assert node.status is not None
    assert record.running == []


def test_a_node_started_again_by_hand_is_running_and_its_bytes_add_up():
    record = swarm()
    plan = record.nodes["trainer-1"].plan
    first = status(plan, traffic=TrafficStatus(weights_sent=100))
    record.observe("trainer-1", sample(first, pid=7))
    record.observe("trainer-1", StatusSample(7, False, None))
    again = status(plan, traffic=TrafficStatus(weights_sent=30))
    record.observe("trainer-1", StatusSample(8, True, None))
    record.observe("trainer-1", sample(again, pid=8))
    assert record.nodes["trainer-1"].condition == "running"
    assert record.weights_sent == 130


def test_the_curve_outlives_the_node_that_told_it():
    record = swarm()
    plan = record.nodes["trainer-1"].plan
    told = status(plan, checkpoints=(checkpoint(0, 0.0), checkpoint(1, 0.4)))
    record.observe("trainer-1", sample(told, pid=7))
    record.observe("trainer-1", sample(status(plan, checkpoints=()), pid=8))
    assert record.rewards == [(1, 0.4)]
    assert record.newest_version == 1


def observe_uncertified(record: SwarmRecord, name: str, uncertified: int) -> None:
    plan = record.nodes[name].plan
    point = checkpoint(1, 0.4, uncertified)
    record.observe(name, sample(status(plan, checkpoints=(point,))))


def test_one_witness_other_than_the_trainer_shows_that_a_batch_was_certified():
    record = swarm()
    observe_uncertified(record, "trainer-1", 0)
    observe_uncertified(record, "relay-1", 2)
    observe_uncertified(record, "trainer-1", 0)
    assert record.trained_without_certificate == 2
    observe_uncertified(record, "validator-1", 0)
    observe_uncertified(record, "relay-1", 2)
    assert record.trained_without_certificate == 0


def test_a_liar_is_judged_by_the_least_flattering_view():
    record = swarm()
    liar = "12D3KooWliar"
    for name, certified in (("relay-1", 0), ("trainer-1", 1), ("validator-1", 0)):
        counts = {liar: RolloutCounts(committed=3, certified=certified)}
        record.observe(name, sample(status(record.nodes[name].plan, workers=counts)))
    assert record.worker_counts(liar).certified == 1
    assert record.worker_counts("nobody") == RolloutCounts()


def test_who_joined_from_outside_is_seen_until_the_last_record_of_it_expires():
    record = learned_swarm()
    assert len(record.outsiders) == 1
    for node in record.nodes.values():
        record.observe(node.plan.name, sample(status(node.plan, members=())))
    assert record.outsiders == []


def test_the_trusted_page_is_that_of_the_node_with_the_newest_final_page():
    record = swarm()
    assert record.trusted_page == ""
    for name, council in (
        ("trainer-1", CouncilSummary(final_epoch=9)),
        ("relay-1", CouncilSummary(seat="ab" * 32, since_epoch=7, final_epoch=8)),
    ):
        plan = record.nodes[name].plan
        record.observe(name, sample(status(plan, council=council), pid=7))
    assert record.trusted_page == "", "the genesis is the council on the first one"
    plan = record.nodes["trainer-1"].plan
    seated = CouncilSummary(seat="cd" * 32, since_epoch=10, final_epoch=12)
    record.observe("trainer-1", sample(status(plan, council=seated), pid=7))
    assert record.trusted_page == f"10:{'cd' * 32}"

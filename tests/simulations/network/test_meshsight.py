"""Mesh observer: decoded control equals the router's, and junk decodes to nothing."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.gossipsub.rpc import IHave, Prune, Rpc, Subscription, encode_rpc, frame
from roles.ports.transport import TransportError
from simulations.network.meshsight import MeshControl, mesh_control, mesh_pipes
from simulations.runtime.loop import VirtualLoop
from tests.simulations.network.machines import Machines

pytestmark = pytest.mark.virtual(loop=VirtualLoop)

TOPICS = st.sampled_from(["run/commits", "run/roster", "run/certificates"])
RPCS = st.builds(
    Rpc,
    subscriptions=st.lists(st.builds(Subscription, st.booleans(), TOPICS), max_size=2).map(tuple),
    publish=st.lists(st.binary(max_size=300), max_size=2).map(tuple),
    ihave=st.lists(st.builds(IHave, TOPICS, st.tuples(st.binary(max_size=40))), max_size=2).map(
        tuple
    ),
    iwant=st.lists(st.binary(max_size=40), max_size=2).map(tuple),
    graft=st.lists(TOPICS, max_size=2).map(tuple),
    prune=st.lists(st.builds(Prune, TOPICS, st.integers(0, 4000)), max_size=2).map(tuple),
)


def short(topic):
    return topic.rpartition("/")[2]


@given(st.lists(RPCS, min_size=1, max_size=4))
def test_grafts_and_prunes_of_a_write_are_seen_in_order(rpcs):
    seen = mesh_control(b"".join(frame(encode_rpc(rpc)) for rpc in rpcs))
    expected = []
    for rpc in rpcs:
        expected += [MeshControl("graft", short(topic)) for topic in rpc.graft]
        expected += [
            MeshControl("prune", short(entry.topic), entry.backoff_seconds) for entry in rpc.prune
        ]
    assert list(seen) == expected


@given(st.binary(max_size=200))
def test_junk_holds_no_control_or_some(data):
    assert isinstance(mesh_control(data), tuple)


@given(RPCS, st.integers(1, 20))
def test_a_write_that_breaks_off_is_no_error(rpc, missing):
    assert isinstance(mesh_control(frame(encode_rpc(rpc))[:-missing]), tuple)


async def test_what_is_written_is_told_at_once_and_a_prune_again_when_it_was_taken():
    graft, prune = Rpc(graft=("run/commits",)), Rpc(prune=(Prune("run/roster", 60),))
    machines, told = Machines(round_trip_seconds=1.0), []

    def record(node, kind, **facts):
        told.append((node, kind, facts))

    machines.network.pipe_makers["test"] = mesh_pipes(record)
    await machines.add("a", "b")
    ours, theirs = await machines.stream("a", "b")
    await ours.write(frame(encode_rpc(graft)))
    await theirs.write(frame(encode_rpc(prune)))
    written = [
        ("a", "graft", {"peer": "b", "topic": "commits"}),
        ("b", "prune", {"peer": "a", "topic": "roster", "backoff": 60}),
    ]
    assert told == written
    cut = machines.network.partition(["a"])
    await asyncio.sleep(5)
    assert told == written, "nothing has come yet"
    machines.network.heal(cut)
    await asyncio.sleep(5)
    assert told == written, "it has come, and waits"
    size = len(frame(encode_rpc(prune)))
    assert await ours.read(size - 1)
    assert await ours.read(1)
    assert told == written, "its last byte was taken just now"
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(ours.read(1), 1)
    taken = ("a", "prune-in", {"peer": "b", "topic": "roster", "backoff": 60})
    assert told == [*written, taken]
    await ours.write(frame(encode_rpc(prune)))
    await asyncio.sleep(5)
    machines.network.break_streams("a")
    with pytest.raises(TransportError):
        await theirs.read(1)
    assert [kind for _, kind, _ in told[3:]] == ["prune"], "it was never taken"

from hypothesis import given
from hypothesis import strategies as st

from node.api.v1.weights import download_statuses
from node.network.blobs.transport_choice import BlobTransport
from node.weights.download_progress import (
    ARRIVED_KEPT,
    SECONDS_BOUNDS,
    DownloadLog,
    DownloadProgress,
    Form,
    Label,
)
from protocol.core.types import Digest, PeerId
from protocol.shardcast.events import Ask
from protocol.shardcast.index import Shard, ShardIndex, shard_count, shard_length

PEERS = [PeerId(f"peer {number}") for number in range(5)]
ROOT = PEERS[0]
DIGEST = Digest(bytes(32))


@st.composite
def indexes(draw):
    """Return an index with arbitrary shards; digests do not matter."""
    chunk_bytes = draw(st.integers(1, 9))
    shard_bytes = chunk_bytes * draw(st.integers(1, 5)) + draw(st.integers(0, chunk_bytes - 1))
    total_bytes = draw(st.integers(1, 200))
    lengths = [
        shard_length(total_bytes, shard_bytes, number)
        for number in range(shard_count(total_bytes, shard_bytes))
    ]
    shards = tuple(
        Shard(DIGEST, length, (DIGEST,) * shard_count(length, chunk_bytes)) for length in lengths
    )
    return ShardIndex(total_bytes, shard_bytes, chunk_bytes, shards)


def pieces_of(index):
    return [
        (shard, chunk)
        for shard, made in enumerate(index.shards)
        for chunk in range(len(made.chunks))
    ]


@given(indexes(), st.integers(1, 6), st.data())
def test_a_record_says_what_is_here_and_from_whom(index, stripes, data):
    every = pieces_of(index)
    before = set(data.draw(st.lists(st.sampled_from(every))))
    missing = [
        [chunk for chunk in range(len(shard.chunks)) if (number, chunk) not in before]
        for number, shard in enumerate(index.shards)
    ]
    arrivals = DownloadLog()
    arrival = arrivals.begin(Label("version 7", 7, Form.PATCH, 5), ROOT, stripes, 100.0)
    (asking,) = download_statuses(arrivals, 101.5, 1e9)
    assert (asking.seconds, asking.total_bytes, asking.stripes) == (1.5, 0, ())
    assert (asking.seconds_to_go, asking.bytes_per_second, asking.sources) == (None, 0, ())
    arrival.start(index, missing)
    here, came, now = set(before), [], 102.0
    for (shard, chunk), peer, way in data.draw(
        st.lists(
            st.tuples(
                st.sampled_from(every), st.sampled_from(PEERS), st.sampled_from(BlobTransport)
            ),
            max_size=60,
        )
    ):
        now += 0.01
        arrival.received(peer, way, index.chunk_length(shard, chunk), now)
        arrival.have(shard, chunk)
        here.add((shard, chunk))
        came.append((peer, way, index.chunk_length(shard, chunk)))
    (status,) = download_statuses(arrivals, now, 1e9)
    assert (status.version, status.form, status.saved_bytes) == (7, "patch", 5)
    assert status.total_bytes == index.total_bytes
    assert status.bytes_here == sum(index.chunk_length(*piece) for piece in here)
    assert drawn(status, stripes) == [
        [(shard, chunk) in here for shard, chunk in every if shard % stripes == number]
        for number in range(stripes)
    ]
    assert (status.pieces, status.pieces_here) == (len(every), len(here))
    moved = sum(count for _, _, count in came)
    assert status.bytes_per_second == moved  # all of it within one second
    assert status.root_bytes == sum(count for peer, _, count in came if peer == ROOT)
    assert status.http_bytes == sum(count for _, way, count in came if way is BlobTransport.HTTP)
    assert status.http_bytes + status.stream_bytes == moved
    assert {one.name: (one.http_bytes, one.stream_bytes) for one in status.sources} == {
        peer: tuple(
            sum(count for name, by, count in came if (name, by) == (peer, way))
            for way in BlobTransport
        )
        for peer, _, _ in came
    }
    if moved:
        left_bytes = index.total_bytes - status.bytes_here
        assert status.seconds_to_go == round(left_bytes / moved, 1)
    else:
        assert status.seconds_to_go is None


def drawn(status, stripes):
    """Decode the maps by their documentation alone."""
    maps = {stripe.number: [] for stripe in status.stripes}
    for stripe in status.stripes:
        for piece in range(stripe.pieces):
            digit = int(stripe.map[piece // 4], 16)
            maps[stripe.number].append(bool(digit & 8 >> piece % 4))
        assert len(stripe.map) == -(-stripe.pieces // 4)
        assert stripe.pieces_here == sum(maps[stripe.number])
    return [maps.get(number, []) for number in range(stripes)]


def small_index():
    return ShardIndex(4, 4, 4, (Shard(DIGEST, 4, (DIGEST,)),))


def test_a_parent_is_who_may_make_us_wait():
    arrival = DownloadProgress(Label(), ROOT, 2, 0.0)
    arrival.asked(Ask(0, 1, PEERS[1], 0, 0, 1, wait=True))
    arrival.asked(Ask(1, 1, PEERS[2], 0, 0, 1, wait=False))
    assert arrival.parents == ["", PEERS[1]]
    arrival.asked(Ask(2, 1, PEERS[3], 0, 0, 1, wait=True))
    assert arrival.parents == ["", PEERS[3]]


def test_what_has_come_is_remembered_for_a_while_with_its_time():
    arrivals = DownloadLog()
    for version in range(ARRIVED_KEPT + 3):
        arrival = arrivals.begin(Label(f"version {version}", version), ROOT, 1, 10.0 * version)
        arrival.start(small_index(), [[0]])
        arrival.received(ROOT, BlobTransport.STREAM, 4, 10.0 * version + 1)
        arrival.have(0, 0)
        arrivals.complete(arrival, 10.0 * version + 2)
        arrivals.end(arrival)
    late = arrivals.begin(Label("version 3", 3), ROOT, 1, 200.0)
    newest = arrivals.begin(Label("version 12", 12), ROOT, 1, 200.0)
    statuses = download_statuses(arrivals, 210.0, 1_000_210.0)
    assert [one.version for one in statuses[:2]] == [12, 3]
    assert [one.version for one in statuses[2:]] == list(range(ARRIVED_KEPT + 2, 2, -1))
    last = statuses[2]
    assert (last.arrived_at, last.seconds, last.bytes_here) == (1_000_102.0, 2.0, 4)
    assert last.bytes_per_second == 4
    assert last.stripes == ()
    assert statuses[0].arrived_at is None
    arrivals.end(newest)
    arrivals.end(late)
    assert arrivals.under_way == []


def test_durations_are_counted_by_form_and_for_versions_alone():
    arrivals = DownloadLog()
    for label, seconds in (
        (Label("version 0", 0, Form.PLANES), 0.5),
        (Label("version 1", 1, Form.PATCH), 0.51),
        (Label("version 2", 2, Form.PATCH), 1e6),
        (Label("bundle"), 3.0),
    ):
        arrival = arrivals.begin(label, ROOT, 4, 50.0)
        arrivals.complete(arrival, 50.0 + seconds)
        arrivals.end(arrival)
    arrivals.end(arrivals.begin(Label("version 3", 3), ROOT, 4, 60.0))  # given up
    told = arrivals.durations
    empty = [0] * (len(SECONDS_BOUNDS) + 1)
    assert told[Form.PLANES].counts == [1, *empty[1:]]
    assert told[Form.PATCH].counts == [0, 1, *empty[3:], 1]
    assert told[Form.PATCH].seconds == 1e6 + 0.51
    assert told[Form.FILE].counts == empty
    assert [one.label.version for one in arrivals.arrived] == [0, 1, 2]

from hypothesis import given
from hypothesis import strategies as st

from protocol.core.containers import BoundedDict, LruCache, SizeGauge, table_sizes
from protocol.core.faults import Fault
from protocol.gossipsub.message import Decoded, decode_message, encode_message, sign_message
from protocol.messages import Opened, RolloutCommit, open_envelope
from tests.worlds.messages import World, forged, run_manifest

WORLD = World(run_manifest())
COMMIT = WORLD.commit(WORLD.workers[0])


KEYS, VALUES = st.integers(0, 7), st.integers()
STEPS = st.one_of(
    st.tuples(st.sampled_from(["set", "setdefault", "update", "newest"]), KEYS, VALUES),
    st.tuples(st.sampled_from(["pop", "retain"]), KEYS, st.none()),
)


def modelled(entries, limit, step):
    """Return the model, a list of (key, value), oldest first, after one step."""
    name, key, value = step
    known = dict(entries)
    others = [entry for entry in entries if entry[0] != key]
    if name == "pop":
        return others
    if name == "retain":
        return [entry for entry in entries if entry[0] >= key]
    if name == "newest":
        return [*others, (key, value)][-limit:]
    if key not in known:
        return [*entries, (key, value)][-limit:]
    value = known[key] if name == "setdefault" else value
    return [(one, value if one == key else kept) for one, kept in entries]


@given(st.integers(1, 5), st.lists(STEPS, max_size=30))
def test_a_bounded_dict_does_what_a_list_of_its_entries_does(limit, steps):
    table, entries = BoundedDict[int, int](limit), []
    for name, key, value in steps:
        match name:
            case "set":
                table[key] = value
            case "setdefault":
                assert table.setdefault(key, value) == dict(entries).get(key, value)
            case "update":
                table.update({key: value})
            case "newest":
                table.set_newest(key, value)
            case "pop":
                assert table.pop(key, None) == dict(entries).get(key)
            case "retain":
                table.retain(lambda one, _, least=key: one >= least)
        entries = modelled(entries, limit, (name, key, value))
        assert list(table.items()) == entries


def test_fullest_table_of_a_name_is_reported():
    few, many = BoundedDict[int, int](4, "bans"), BoundedDict[int, int](4, "bans")
    few[0] = many[0] = many[1] = 0
    gauge = SizeGauge("bytes", 10, lambda: 7)
    assert table_sizes([many, few, gauge]) == {"bans": 2, "bytes": 7}


def test_the_least_recently_used_result_is_evicted_first():
    results = LruCache[str, int](2)
    assert results.get_or_compute("a", lambda _key: 1) == 1
    results.get_or_compute("b", lambda _key: 2)
    assert results.get_or_compute("a", lambda _key: 0) == 1
    results.get_or_compute("c", lambda _key: 3)
    assert results.get_or_compute("a", lambda _key: 0) == 1
    assert results.get_or_compute("c", lambda _key: 0) == 3
    assert results.get_or_compute("b", lambda _key: 4) == 4


def counting(asked, *, answer=True):
    def verify(signer, message, signature):
        asked.append(signer)
        return answer

    return verify


def test_an_envelope_found_good_is_not_checked_again():
    opened, asked = Opened(8), []
    first, second = (
        open_envelope(COMMIT.envelope, RolloutCommit, WORLD.run_id, counting(asked), opened)
        for _ in range(2)
    )
    assert first is second
    assert asked == [COMMIT.signer]


def test_an_envelope_is_remembered_for_its_run_and_kind_alone():
    opened, asked = Opened(8), []
    for run_id in (WORLD.run_id, bytes(32)):
        open_envelope(COMMIT.envelope, RolloutCommit, run_id, counting(asked), opened)
    assert len(asked) == 2


def test_faults_are_not_cached():
    opened, asked = Opened(8), []
    bad = forged(COMMIT, signature=bytes(64))
    for _ in range(2):
        verify = counting(asked, answer=False)
        result = open_envelope(bad, RolloutCommit, WORLD.run_id, verify, opened)
        assert isinstance(result, Fault)
    assert len(asked) == 2


def test_a_gossiped_message_is_decoded_once_and_a_malformed_one_every_time():
    decoded = Decoded(8)
    data = encode_message(sign_message(WORLD.workers[0], "topic", b"data", 7))
    first, second = (decoded.get_or_compute(data, decode_message) for _ in range(2))
    assert first is second
    assert isinstance(decoded.get_or_compute(data[:-1], decode_message), Fault)
    assert first == decode_message(data)

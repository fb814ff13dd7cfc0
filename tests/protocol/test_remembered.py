from protocol.faults import Fault
from protocol.gossip.message import Decoded, decode_message, encode_message, sign_message
from protocol.messages import Opened, RolloutCommit, open_envelope
from protocol.remembered import Remembered
from tests.worlds.messages import World, forged, run_manifest

WORLD = World(run_manifest())
COMMIT = WORLD.commit(WORLD.workers[0])


def test_the_least_recently_used_result_goes_first():
    results = Remembered[str, int](2)
    assert results.recall("a", lambda: 1) == 1
    results.recall("b", lambda: 2)
    assert results.recall("a", lambda: 0) == 1
    results.recall("c", lambda: 3)
    assert dict(results._entries) == {"a": 1, "c": 3}
    assert results.recall("b", lambda: 4) == 4


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


def test_what_is_found_wrong_is_not_remembered():
    opened, asked = Opened(8), []
    bad = forged(COMMIT, signature=bytes(64))
    for _ in range(2):
        verify = counting(asked, answer=False)
        result = open_envelope(bad, RolloutCommit, WORLD.run_id, verify, opened)
        assert isinstance(result, Fault)
    assert len(asked) == 2
    assert not opened._entries


def test_a_gossiped_message_is_decoded_once_and_a_malformed_one_every_time():
    decoded = Decoded(8)
    data = encode_message(sign_message(WORLD.workers[0], "topic", b"data", 7))
    assert decode_message(data, decoded) is decode_message(data, decoded)
    assert isinstance(decode_message(data[:-1], decoded), Fault)
    assert list(decoded._entries) == [data]

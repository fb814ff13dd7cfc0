import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.core.codec import decode, encode
from protocol.core.crypto import digest, peer_id_from_public_key, public_key_from_peer_id
from protocol.core.faults import Fault
from protocol.ledger.receipts import (
    COUNT_MAX,
    LEARNED_MAX,
    REASON_CHARACTERS_MAX,
    STEPS_MAX,
    WORK_BYTES_MAX,
    PageWork,
    Receipt,
    Reversal,
    Step,
    decode_work,
)
from protocol.messages import LISTED_MAX, OMITTED_MAX, ROUND_TRAINERS_MAX, VERDICTS_MAX

KEYS = sorted(digest(b"key %d" % number) for number in range(300))
PEERS = [peer_id_from_public_key(key) for key in KEYS]
A, B, C = PEERS[:3]
COUNTS = st.integers(0, COUNT_MAX)
PEER_SETS = st.sets(st.sampled_from(PEERS), max_size=6).map(lambda peers: tuple(sorted(peers)))
RECEIPTS = st.builds(
    Receipt,
    st.binary(min_size=32, max_size=32),
    st.sampled_from(PEERS),
    COUNTS,
    COUNTS,
    st.booleans(),
    COUNTS,
    st.text(max_size=20) | st.sampled_from(["accepted", "computation"]),
    PEER_SETS,
)
SHARES = PEER_SETS.flatmap(
    lambda peers: st.tuples(*(st.tuples(st.just(peer), COUNTS, COUNTS) for peer in peers))
)
OMITTED = st.integers(0, OMITTED_MAX)
STEPS = st.builds(
    Step,
    COUNTS,
    st.binary(min_size=32, max_size=32),
    st.sampled_from(PEERS),
    SHARES,
    OMITTED,
    PEER_SETS,
).map(
    lambda one: one._replace(partners=tuple(peer for peer in one.partners if peer != one.trainer))
)
REVERSALS = st.builds(Reversal, RECEIPTS, st.sampled_from(["accepted", "computation", "reward"]))
WORKS = st.builds(
    PageWork,
    st.lists(RECEIPTS, max_size=5, unique_by=lambda one: one.commit).map(tuple),
    st.lists(STEPS, max_size=4, unique_by=lambda one: one.version).map(
        lambda steps: tuple(sorted(steps, key=lambda one: one.version))
    ),
    st.lists(REVERSALS, max_size=2, unique_by=lambda one: one.receipt.commit).map(tuple),
).filter(lambda work: len(named(work)) == len(set(named(work))))


def named(work: PageWork) -> list[bytes]:
    """Return the commits that work names."""
    return [
        *(one.commit for one in work.receipts),
        *(one.receipt.commit for one in work.overturned),
    ]


def receipt(number: int = 0, **changes) -> Receipt:
    one = Receipt(digest(b"commit %d" % number), A, 3, number, False, 1000, "accepted", (A, B))
    return one._replace(**changes)


def step(version: int = 3, **changes) -> Step:
    one = Step(version, digest(b"manifest %d" % version), C, ((A, 2, 2000), (B, 1, 10)), 7)
    return one._replace(**changes)


WORK = PageWork(
    (receipt(0), receipt(1, worker=B, reason="computation")),
    (step(3), step(4, partners=(A, B))),
    (Reversal(receipt(2), "format"),),
)


@given(WORKS)
def test_work_comes_back(work):
    data = work.encoded()
    assert decode_work(data) == work
    assert work.digest == (digest(data) if data else b"")


def test_the_encoding():
    key = {peer: public_key_from_peer_id(peer) for peer in (A, B, C)}
    work = PageWork((receipt(),), (step(),), (Reversal(receipt(1), "format"),))
    assert work.encoded() == encode(
        {
            "overturned": [
                [
                    [digest(b"commit 1"), key[A], 3, 1, False, 1000, "accepted", [key[A], key[B]]],
                    "format",
                ],
            ],
            "receipts": [
                [digest(b"commit 0"), key[A], 3, 0, False, 1000, "accepted", [key[A], key[B]]],
            ],
            "steps": [
                [3, digest(b"manifest 3"), key[C], [[key[A], 2, 2000], [key[B], 1, 10]], 7],
            ],
        }
    )


def test_the_encoding_of_a_step_ends_with_its_partners_if_there_are_any():
    alone, shared = PageWork((), (step(),)), PageWork((), (step(partners=(A, B)),))
    values, longer = (decode(one.encoded(), bytes_max=WORK_BYTES_MAX) for one in (alone, shared))
    (five,), (six,) = values["steps"], longer["steps"]
    assert six == (*five, tuple(public_key_from_peer_id(one) for one in (A, B)))
    empty = encode({**values, "steps": ((*five, ()),)})
    assert isinstance(decode_work(empty), Fault), "no partners have one encoding"
    seven = encode({**values, "steps": ((*six, ()),)})
    assert isinstance(decode_work(seven), Fault)


def test_no_work_is_no_bytes():
    assert PageWork().encoded() == PageWork().digest == b""
    assert decode_work(b"") == PageWork()
    empty = {"overturned": [], "receipts": [], "steps": []}
    assert isinstance(decode_work(encode(empty)), Fault)
    assert isinstance(decode_work(encode(empty | {"receipts": [receipt()]})), Fault)


def test_the_largest_numbers_are_accepted():
    widest = receipt(
        tokens=COUNT_MAX,
        version=COUNT_MAX,
        slot=COUNT_MAX,
        reason="r" * REASON_CHARACTERS_MAX,
        checkers=tuple(PEERS[:VERDICTS_MAX]),
    )
    for work in (
        PageWork((widest,)),
        PageWork(tuple(receipt(number) for number in range(LISTED_MAX))),
        PageWork((), tuple(step(number) for number in range(STEPS_MAX))),
        PageWork((), (step(learned=tuple((peer, 1, 1) for peer in PEERS[:LEARNED_MAX])),)),
        PageWork((), (step(partners=tuple(PEERS[3 : 3 + ROUND_TRAINERS_MAX])),)),
    ):
        assert decode_work(work.encoded()) == work


REFUSED = {
    "receipts and reversals too many": PageWork(
        tuple(receipt(number) for number in range(LISTED_MAX)),
        overturned=(Reversal(receipt(LISTED_MAX), "format"),),
    ),
    "an overturned commit twice": PageWork(
        overturned=(Reversal(receipt(0), "format"), Reversal(receipt(0), "reward"))
    ),
    "a commit decided and overturned": PageWork(
        (receipt(0),), overturned=(Reversal(receipt(0), "format"),)
    ),
    "a bad receipt in a reversal": PageWork(overturned=(Reversal(receipt(version=-1), "format"),)),
    "a long reason of a reversal": PageWork(
        overturned=(Reversal(receipt(), "r" * (REASON_CHARACTERS_MAX + 1)),)
    ),
    "a receipt too many": PageWork(tuple(receipt(number) for number in range(LISTED_MAX + 1))),
    "a step too many": PageWork((), tuple(step(number) for number in range(STEPS_MAX + 1))),
    "a checker too many": PageWork((receipt(checkers=tuple(PEERS[: VERDICTS_MAX + 1])),)),
    "a worker too many": PageWork(
        (), (step(learned=tuple((peer, 1, 1) for peer in PEERS[: LEARNED_MAX + 1])),)
    ),
    "a partner too many": PageWork((), (step(partners=tuple(PEERS[3 : 4 + ROUND_TRAINERS_MAX])),)),
    "partners out of order": PageWork((), (step(partners=(B, A)),)),
    "a partner twice": PageWork((), (step(partners=(A, A)),)),
    "a trainer as its partner": PageWork((), (step(partners=(A, C)),)),
    "an omitted commit too many": PageWork((), (step(omitted=OMITTED_MAX + 1),)),
    "a long reason": PageWork((receipt(reason="r" * (REASON_CHARACTERS_MAX + 1)),)),
    "a commit twice": PageWork((receipt(0), receipt(0, slot=1))),
    "a short commit": PageWork((receipt(commit=b"c" * 31),)),
    "a short manifest": PageWork((), (step(manifest=b"m" * 31),)),
    "checkers out of order": PageWork((receipt(checkers=(B, A)),)),
    "a checker twice": PageWork((receipt(checkers=(A, A)),)),
    "learned out of order": PageWork((), (step(learned=((B, 1, 1), (A, 1, 1))),)),
    "a worker twice": PageWork((), (step(learned=((A, 1, 1), (A, 1, 1))),)),
    "versions out of order": PageWork((), (step(4), step(3))),
    "a version twice": PageWork((), (step(3), step(3))),
    "a flag that is a number": PageWork((receipt(evaluation=1),)),
    "a reason that is no text": PageWork((receipt(reason=b"accepted"),)),
}
for field in ("version", "slot", "tokens"):
    for bad in (-1, COUNT_MAX + 1, True, 1.0, "1"):
        REFUSED[f"{field} {bad!r}"] = PageWork((receipt(**{field: bad}),))
for bad in (-1, COUNT_MAX + 1, True):
    REFUSED[f"version of a step {bad!r}"] = PageWork((), (step(bad),))
    REFUSED[f"omitted {bad!r}"] = PageWork((), (step(omitted=bad),))
    REFUSED[f"learned rollouts {bad!r}"] = PageWork((), (step(learned=((A, bad, 1),)),))
    REFUSED[f"learned tokens {bad!r}"] = PageWork((), (step(learned=((A, 1, bad),)),))


@pytest.mark.parametrize("name", REFUSED)
def test_work_out_of_bounds_is_refused(name):
    assert isinstance(decode_work(REFUSED[name].encoded()), Fault)


def test_the_largest_work_of_honest_nodes_is_accepted():
    """Reasons of rejections have a few characters; numbers are as long as they can be."""
    many = tuple(
        receipt(
            number,
            reason="computation",
            tokens=2**31,
            version=2**16,
            slot=2**31,
            checkers=tuple(PEERS[:VERDICTS_MAX]),
        )
        for number in range(LISTED_MAX)
    )
    steps = tuple(
        step(
            number,
            learned=tuple((peer, 1, 2**31) for peer in PEERS[:LEARNED_MAX]),
            partners=tuple(PEERS[3 : 3 + ROUND_TRAINERS_MAX]),
        )
        for number in range(STEPS_MAX)
    )
    work = PageWork(many, steps)
    assert decode_work(work.encoded()) == work


def test_more_bytes_than_allowed_are_refused():
    many = tuple(
        receipt(number, reason="é" * REASON_CHARACTERS_MAX, checkers=tuple(PEERS[:VERDICTS_MAX]))
        for number in range(LISTED_MAX)
    )
    steps = tuple(
        step(number, learned=tuple((peer, 1, 1) for peer in PEERS[:LEARNED_MAX]))
        for number in range(STEPS_MAX)
    )
    data = PageWork(many, steps).encoded()
    assert len(data) > WORK_BYTES_MAX
    assert decode_work(data).code == "oversize"


def places_in(value, where=()):
    """Yield the places of all values inside a decoded one."""
    yield where
    if isinstance(value, dict | tuple):
        for place, one in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places_in(one, (*where, place))


def changed(value, where, new):
    """Return a copy of a decoded value with another one at a place."""
    if not where:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[where[0]] = changed(value[where[0]], where[1:], new)
    return copy


@given(st.data())
def test_another_value_at_any_place_gives_other_work_or_a_fault(data):
    value = decode(WORK.encoded(), bytes_max=WORK_BYTES_MAX)
    where = data.draw(st.sampled_from(list(places_in(value))))
    new = data.draw(
        st.none()
        | st.booleans()
        | st.integers(-(2**63), 2**64 - 1)
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.binary(max_size=33)
        | st.text(max_size=3)
        | st.just([])
        | st.just({})
        | st.just([b"k" * 32, 1])
    )
    data = encode(changed(value, where, new))
    found = decode_work(data)
    assert isinstance(found, Fault) or found.encoded() == data


@given(st.binary(max_size=300))
def test_random_bytes_never_raise(data):
    found = decode_work(data)
    assert isinstance(found, Fault) or found.encoded() == data


@given(WORKS.filter(lambda work: work.encoded()), st.data())
def test_a_changed_byte_never_gives_the_same_work(work, data):
    good = work.encoded()
    place = data.draw(st.integers(0, len(good) - 1))
    bad = good[:place] + bytes([good[place] ^ data.draw(st.integers(1, 255))]) + good[place + 1 :]
    found = decode_work(bad)
    assert isinstance(found, Fault) or (found != work and found.encoded() == bad)


@given(st.lists(st.binary(min_size=32, max_size=32), max_size=9))
def test_peer_ids_have_the_order_of_their_keys(keys):
    peers = [peer_id_from_public_key(key) for key in sorted(keys)]
    assert peers == sorted(peers)


def test_a_worker_without_a_key_is_our_fault():
    with pytest.raises(ValueError, match="not an Ed25519 peer id"):
        PageWork((receipt(worker="nobody"),)).encoded()

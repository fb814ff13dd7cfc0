import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from protocol.core.codec import encode
from protocol.core.crypto import digest, signing_bytes, verify
from protocol.core.faults import Fault, FaultCode
from protocol.core.types import RunId
from protocol.messages import (
    BATCH_MAX,
    COUNCIL_MAX,
    ENVELOPE_BYTES_MAX,
    LISTED_MAX,
    REVEALERS_MAX,
    VERDICT_BYTES_MAX,
    VERDICTS_MAX,
    WITNESSES,
    Certificate,
    CheckpointManifest,
    NodeRecord,
    Page,
    RolloutCommit,
    Signed,
    Verdict,
    envelope_kind,
    open_any,
    open_envelope,
    seal,
)
from tests.worlds.messages import World, forged, identity, run_manifest, verdict_of

WORLD = World(run_manifest())
WORKER, VALIDATOR = WORLD.workers[0], WORLD.validators[0]
COMMIT = WORLD.commit(WORKER)
MESSAGES = [
    WORLD.record(WORKER, ("inference",)),
    COMMIT,
    WORLD.verdict(VALIDATOR, COMMIT),
    WORLD.certificate(COMMIT),
    WORLD.genesis(),
    WORLD.book.page(2),
    WORLD.book.votes(2)[0],
    WORLD.book.reveals(2)[0],
]


def opened(envelope, kind=RolloutCommit, run_id=WORLD.run_id):
    return open_envelope(envelope, kind, run_id, verify)


def reason(envelope, kind=RolloutCommit):
    result = opened(envelope, kind)
    assert isinstance(result, Fault), result
    return result.code


def sealed_payload(payload: bytes, kind="rollout-commit", signer=WORKER) -> bytes:
    """Return an envelope that is valid except for its payload."""
    signature = signer.sign(signing_bytes(kind, WORLD.run_id, payload))
    return encode(
        {"kind": kind, "payload": payload, "signature": signature, "signer": signer.peer_id}
    )


def with_fields(message=COMMIT, **fields) -> bytes:
    values = message.message.model_dump() | fields
    return sealed_payload(encode(values), message.message.kind)


@pytest.mark.parametrize("signed", MESSAGES, ids=lambda signed: signed.message.kind)
def test_every_message_opens_as_it_was_sealed(signed):
    assert opened(signed.envelope, type(signed.message)) == signed
    assert envelope_kind(signed.envelope) == signed.message.kind


@pytest.mark.parametrize("signed", MESSAGES, ids=lambda signed: signed.message.kind)
@pytest.mark.parametrize("kind", [NodeRecord, RolloutCommit, Verdict, Certificate])
def test_no_message_opens_as_another_kind_or_for_another_run(signed, kind):
    if kind is not type(signed.message):
        assert isinstance(opened(signed.envelope, kind), Fault)
        renamed = forged(signed, kind=kind.kind)
        assert reason(renamed, kind) in {"bad-fields", "bad-signature", "oversize"}
    other_run = RunId(digest(b"another run"))
    fault = opened(signed.envelope, type(signed.message), other_run)
    assert fault == Fault(FaultCode.BAD_SIGNATURE)


@given(st.data())
def test_no_changed_byte_passes(data):
    envelope = data.draw(st.sampled_from(MESSAGES)).envelope
    place = data.draw(st.integers(0, len(envelope) - 1))
    flipped = envelope[place] ^ data.draw(st.integers(1, 255))
    changed = envelope[:place] + bytes([flipped]) + envelope[place + 1 :]
    for signed in MESSAGES:
        assert isinstance(opened(changed, type(signed.message)), Fault)


@given(st.binary(max_size=300))
def test_random_bytes_and_random_payloads_never_raise(data):
    assert isinstance(opened(data), Fault)
    assert isinstance(opened(sealed_payload(data)), Fault)
    envelope_kind(data)


JUNK = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.text(max_size=3)
    | st.binary(),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)


@given(st.sampled_from(MESSAGES), st.data())
def test_no_field_takes_a_value_of_another_type(signed, data):
    values = signed.message.model_dump()
    name = data.draw(st.sampled_from(sorted(values)))
    junk = data.draw(JUNK)
    result = opened(
        sealed_payload(encode(values | {name: junk}), signed.message.kind), type(signed.message)
    )
    if isinstance(result, Signed):
        taken = getattr(result.message, name)
        assert encode(result.message.model_dump()) == encode(values | {name: junk})
        assert type(taken) is type(values[name]), "the type did not change"


@pytest.mark.parametrize(
    ("fields", "where"),
    [
        ({"slot": True}, "slot"),
        ({"slot": -1}, "slot"),
        ({"slot": 1.0}, "slot"),
        ({"slot": 2**53 + 1}, "slot"),
        ({"slot": "0"}, "slot"),
        ({"slot": None}, "slot"),
        ({"policy": b"x" * 31}, "policy"),
        ({"policy": b"x" * 33}, "policy"),
        ({"policy": "x" * 32}, "policy"),
        ({"evaluation": 1}, "evaluation"),
        ({"extra": 1}, "extra"),
    ],
)
def test_bad_fields_are_named(fields, where):
    assert opened(with_fields(**fields)) == Fault(FaultCode.BAD_FIELDS, where)


def test_a_state_that_is_no_digest_is_refused():
    genesis = WORLD.genesis()
    envelope = with_fields(genesis, state=b"short")
    assert reason(envelope, CheckpointManifest) == "bad-fields"


@pytest.mark.parametrize(
    ("fields", "is_good"),
    [
        ({"witnessed": (b"a" * 32, b"b" * 32), "upload_classes": (3, 3)}, True),
        ({"witnessed": (b"a" * 32,), "upload_classes": ()}, False),
        ({"witnessed": (), "upload_classes": (3,)}, False),
        ({"witnessed": (b"a" * 32, b"a" * 32), "upload_classes": (3, 3)}, False),
    ],
)
def test_a_record_has_one_upload_class_for_each_key_that_it_names(fields, is_good):
    result = opened(with_fields(WORLD.record(WORKER, ("inference",)), **fields), NodeRecord)
    assert isinstance(result, Fault) is not is_good
    if not is_good:
        assert result.code is FaultCode.BAD_FIELDS


def test_a_missing_field_is_refused_and_so_is_a_default_left_out():
    values = COMMIT.message.model_dump()
    del values["slot"]
    assert reason(sealed_payload(encode(values))) == "bad-fields"
    values = WORLD.verdict(VALIDATOR, COMMIT).message.model_dump()
    del values["detail"]
    assert reason(sealed_payload(encode(values), "verdict"), Verdict) == "not-canonical"


@pytest.mark.parametrize("payload", [b"\x05", b"\x90", b"\x80", b"\xc0", b"\xcc\x05"])
def test_a_payload_that_is_no_message_is_refused(payload):
    assert reason(sealed_payload(payload)) in {"bad-fields", "not-canonical"}


@pytest.mark.parametrize(
    "envelope",
    [
        encode([]),
        encode({}),
        encode({"kind": "rollout-commit"}),
        forged(COMMIT, extra=1),
        forged(COMMIT, signer=b"bytes"),
        forged(COMMIT, signature="text"),
        forged(COMMIT, payload=5),
        forged(COMMIT, kind=None),
    ],
)
def test_a_misshapen_envelope_is_refused(envelope):
    assert reason(envelope) == "bad-envelope"


def test_an_envelope_of_any_given_kind_opens_and_no_other():
    kinds = {kind.kind: kind for kind in (RolloutCommit, Verdict)}
    for signed in MESSAGES:
        result = open_any(signed.envelope, kinds, WORLD.run_id, verify)
        expected = signed if signed.message.kind in kinds else Fault(FaultCode.WRONG_KIND)
        assert result == expected
    for data, code in [(b"\xc1", "wrong-kind"), (COMMIT.envelope[:-1], "undecodable")]:
        assert open_any(data, kinds, WORLD.run_id, verify).code == code


def test_kinds_of_other_things_are_not_known():
    assert envelope_kind(encode([1])) is None
    assert envelope_kind(encode({"kind": 1})) is None
    assert envelope_kind(b"\xc1") is None


@pytest.mark.parametrize(
    "fields",
    [
        {"signature": bytes(64)},
        {"signature": b""},
        {"signer": identity("somebody else").peer_id},
        {"signer": WORKER.peer_id + " "},
        {"signer": ""},
    ],
)
def test_nobody_signs_for_another(fields):
    assert opened(forged(COMMIT, **fields)) == Fault(FaultCode.BAD_SIGNATURE)


def test_envelopes_are_canonical():
    fields = msgpack.unpackb(COMMIT.envelope)
    unsorted = msgpack.packb(dict(reversed(fields.items())))
    assert reason(unsorted) == "not-canonical"


def test_the_id_covers_signer_and_payload_but_not_the_signature():
    assert WORLD.commit(WORKER).digest == COMMIT.digest
    assert WORLD.commit(WORLD.workers[1]).digest != COMMIT.digest
    assert WORLD.commit(WORKER, tokens=11).digest != COMMIT.digest
    other_run = seal(COMMIT.message, RunId(bytes(32)), WORKER)
    assert other_run.digest != COMMIT.digest


# Limits


def largest_verdict(signer) -> Signed[Verdict]:
    return WORLD.verdict(
        signer,
        COMMIT,
        detail="d" * 200,
        chunks=2**53,
        means=(-(2**53),) * 8,
        extremes=(2**53,) * 5,
        witness=(-(2**53),) * WITNESSES,
        replays=(2**32,) * WITNESSES,
    )


def test_all_numbers_and_a_full_detail_fit_a_verdict():
    assert len(largest_verdict(VALIDATOR).envelope) <= VERDICT_BYTES_MAX


def test_a_bloated_verdict_cannot_keep_a_certificate_from_fitting():
    bloat = {"reason": "é" * 200, "detail": "é" * 200}
    with pytest.raises(ValueError, match="verdict of"):
        WORLD.verdict(VALIDATOR, COMMIT, **bloat)
    values = verdict_of(COMMIT.digest, bytes(32), **bloat)
    bloated = sealed_payload(encode(values.model_dump()), "verdict", VALIDATOR)
    assert reason(bloated, Verdict) == "oversize"


def test_the_largest_certificate_fits_an_envelope():
    signed = WORLD.sealed(
        Certificate(
            commit=COMMIT.digest,
            page=bytes(32),
            escalated=True,
            accepted=False,
            verdicts=(bytes(VERDICT_BYTES_MAX),) * VERDICTS_MAX,
        ),
        VALIDATOR,
    )
    assert len(signed.envelope) <= ENVELOPE_BYTES_MAX


KEYS = tuple(digest(b"%d" % n) for n in range(2 * COUNCIL_MAX))


@pytest.mark.parametrize(
    "contents",
    [
        {"drawn": KEYS[:COUNCIL_MAX], "seats": (COUNCIL_MAX,) * COUNCIL_MAX},
        {"joined": KEYS[:COUNCIL_MAX], "removed": KEYS[COUNCIL_MAX:]},
        {
            "commits": KEYS[:LISTED_MAX],
            "certified": KEYS[-LISTED_MAX:],
            "checkers": (2**VERDICTS_MAX - 1,) * LISTED_MAX,
            "work": bytes(32),
        },
    ],
    ids=lambda contents: next(iter(contents)),
)
def test_the_largest_page_fits_an_envelope(contents):
    """A page changes the council by keys, draws a new one, or lists commits."""
    page = Page(
        epoch=2**53,
        council=bytes(32),
        parent=bytes(32),
        seed=bytes(32),
        final_epoch=2**53 - 1,
        ledger=bytes(32),
        reveals=(bytes(80),) * REVEALERS_MAX,
        **contents,
    )
    signed = WORLD.sealed(page, VALIDATOR)
    assert opened(signed.envelope, Page) == signed


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("reveals", (bytes(79),)),
        ("reveals", (bytes(80),) * (REVEALERS_MAX + 1)),
        ("seed", b""),
        ("parent", bytes(31)),
        ("joined", (bytes(32),) * (COUNCIL_MAX + 1)),
        ("removed", (bytes(31),)),
        ("drawn", (bytes(32),) * (COUNCIL_MAX + 1)),
        ("seats", (0,)),
        ("seats", (COUNCIL_MAX + 1,)),
        ("seats", (1,) * (COUNCIL_MAX + 1)),
        ("commits", (bytes(32),) * (LISTED_MAX + 1)),
        ("commits", (bytes(31),)),
        ("checkers", (1,)),
        ("work", bytes(31)),
        ("ledger", bytes(31)),
        ("final_epoch", -2),
        ("epoch", -1),
    ],
)
def test_a_page_with_an_impossible_field_is_refused(field, value):
    fields = WORLD.book.page(2).message.model_dump() | {field: value}
    assert page_reason(fields) == "bad-fields"
    assert opened(WORLD.book.page(2).envelope, Page) == WORLD.book.page(2)


def page_reason(fields):
    return reason(sealed_payload(encode(fields), "page", VALIDATOR), Page)


@pytest.mark.parametrize(
    ("certified", "rejected", "checkers"),
    [
        (KEYS[: LISTED_MAX + 1], (), (1,) * (LISTED_MAX + 1)),
        ((), KEYS[: LISTED_MAX + 1], (1,) * (LISTED_MAX + 1)),
        (KEYS[:LISTED_MAX], KEYS[-1:], (1,) * (LISTED_MAX + 1)),
        ((b"",), (), (1,)),
        ((), (bytes(31),), (1,)),
        (KEYS[:2], KEYS[2:3], (1, 1)),
        (KEYS[:1], KEYS[2:3], (1, 1, 1)),
        (KEYS[:1], (), (-1,)),
    ],
)
def test_a_page_has_checkers_of_each_decided_commit_and_a_bounded_number(
    certified, rejected, checkers
):
    fields = WORLD.book.page(2).message.model_dump()
    decided = {"certified": KEYS[:1], "rejected": KEYS[1:LISTED_MAX], "checkers": (1,) * LISTED_MAX}
    fits = sealed_payload(encode(fields | decided), "page", VALIDATOR)
    assert opened(fits, Page).message.decided == KEYS[:LISTED_MAX]
    changed = {"certified": certified, "rejected": rejected, "checkers": checkers}
    assert page_reason(fields | changed) == "bad-fields"


def test_the_largest_checkpoint_fits_an_envelope():
    batch = tuple(digest(bytes([n])) for n in range(BATCH_MAX))
    huge = 2**53
    signed = WORLD.checkpoint(
        WORLD.genesis(), batch=batch, term=huge, total_bytes=huge, state=bytes(32), state_bytes=huge
    )
    assert opened(signed.envelope, CheckpointManifest) == signed
    with pytest.raises(ValidationError):
        WORLD.checkpoint(WORLD.genesis(), batch=(*batch, bytes(32)))


def test_an_oversize_envelope_is_refused_before_it_is_read():
    assert reason(b"\xc1" * (ENVELOPE_BYTES_MAX + 1)) == "oversize"
    assert envelope_kind(b"\xc1" * (ENVELOPE_BYTES_MAX + 1)) is None


def test_what_fits_no_envelope_is_not_sealed():
    with pytest.raises(ValueError, match="limit 16384"):
        WORLD.record(WORKER, ("r" * 5000,) * 4)

import math
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.core.codec import encode
from protocol.core.faults import Fault
from protocol.rollout.body import (
    REWARD_SCALE,
    RolloutSequence,
    body_bytes_max,
    decode_body,
    encode_body,
    reward_min,
    reward_of,
)
from protocol.toploc.layout import ProofLayout, Variant
from tests.worlds.messages import run_manifest

MANIFEST = run_manifest()
TOKENS_MAX = MANIFEST.sampling.tokens_max

SEQUENCES = st.integers(1, TOKENS_MAX).flatmap(
    lambda count: st.builds(
        RolloutSequence,
        st.tuples(*[st.integers(-(2**31), 2**31 - 1)] * count),
        st.tuples(*[st.floats(-1000, 0, width=32)] * count),
        st.integers(0, REWARD_SCALE),
        st.lists(st.binary(max_size=30), max_size=3).map(tuple),
    )
)
GOOD = {
    "logprobs": struct.pack("<2f", -0.5, 0.0),
    "proofs": [b"proof"],
    "reward": 1,
    "tokens": struct.pack("<2i", 5, 1),
}


@given(st.lists(SEQUENCES, min_size=4, max_size=4))
def test_a_body_survives_its_bytes(sequences):
    assert decode_body(encode_body(sequences), MANIFEST) == sequences


@given(st.binary(max_size=300))
def test_random_bytes_never_raise(data):
    assert isinstance(decode_body(data, MANIFEST), Fault)


@given(st.sampled_from(sorted(GOOD)), st.data())
def test_random_fields_never_raise(name, data):
    junk = data.draw(
        st.none()
        | st.booleans()
        | st.integers(-(2**63), 2**64 - 1)
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.binary(max_size=40)
        | st.text(max_size=5)
        | st.lists(st.integers(0, 3) | st.binary(max_size=3), max_size=3)
        | st.dictionaries(st.text(max_size=2), st.none(), max_size=2)
    )
    result = decode_body(encode([GOOD, GOOD, GOOD, GOOD | {name: junk}]), MANIFEST)
    if not isinstance(result, Fault):
        assert encode_body(result) == encode([GOOD, GOOD, GOOD, GOOD | {name: junk}])
        assert type(result[3].reward) is int


@pytest.mark.parametrize(
    "changes",
    [
        {"reward": True},
        {"reward": -1},
        {"reward": REWARD_SCALE + 1},
        {"reward": 1.0},
        {"reward": "1"},
        {"proofs": b"proof"},
        {"proofs": ["text"]},
        {"proofs": [[b"proof"]]},
        {"proofs": None},
        {"tokens": b"12345678"[:7]},
        {"tokens": b""},
        {"tokens": b"", "logprobs": b""},
        {"tokens": bytes(4)},
        {"tokens": bytes(4 * (TOKENS_MAX + 1)), "logprobs": bytes(4 * (TOKENS_MAX + 1))},
        {"logprobs": struct.pack("<2f", -0.5, math.nan)},
        {"logprobs": struct.pack("<2f", -0.5, -math.inf)},
        {"logprobs": struct.pack("<2f", -0.5, math.inf)},
        {"logprobs": struct.pack("<2f", -0.5, 1e-30)},
        {"logprobs": [-0.5, 0.0]},
        {"surprise": 1},
    ],
)
def test_a_bad_sequence_is_a_fault(changes):
    assert isinstance(decode_body(encode([GOOD] * 4), MANIFEST), list)
    result = decode_body(encode([GOOD, GOOD, GOOD, GOOD | changes]), MANIFEST)
    assert isinstance(result, Fault)
    assert result.code == "format"


def test_a_missing_field_is_a_fault():
    without = {key: value for key, value in GOOD.items() if key != "proofs"}
    assert isinstance(decode_body(encode([without] * 4), MANIFEST), Fault)


SAMPLING = st.builds(
    lambda targets, tokens_max, penalty: (
        run_manifest(
            sampling={
                "length_targets": tuple(targets),
                "tokens_max": tokens_max,
                "length_penalty": penalty,
            }
        ).sampling
    ),
    st.lists(st.integers(1, 40), max_size=3),
    st.integers(1, 20),
    st.floats(0, 1),
)


@given(SAMPLING)
def test_the_bounds_of_a_reward_are_what_an_honest_sequence_can_earn(sampling):
    earned = [
        reward_of(sampling, score, tokens, target)
        for score in (0.0, 1.0)
        for tokens in range(1, sampling.tokens_max + 1)
        for target in sampling.length_targets or (None,)
    ]
    assert min(earned) == reward_min(sampling) <= 0
    assert max(earned) <= REWARD_SCALE


def test_a_reward_below_what_can_be_earned_is_a_fault():
    """Answers of up to five tokens are at most eight off the target, at an eighth per token."""
    targets = {"length_targets": (4, 9), "length_penalty": 0.125, "tokens_max": 5}
    manifest = run_manifest(sampling=targets)
    for reward, is_good in ((-1_000_000, True), (-1_000_001, False), (1_000_000, True)):
        body = encode([GOOD, GOOD, GOOD, GOOD | {"reward": reward}])
        assert isinstance(decode_body(body, manifest), list) is is_good
    sequence = RolloutSequence((5, 1), (-0.5, 0.0), -999_999, ())
    assert decode_body(encode_body([sequence] * 4), manifest) == [sequence] * 4


@pytest.mark.parametrize("items", [[], [GOOD] * 3, [GOOD] * 5, {}, None, [GOOD, GOOD, GOOD, 7]])
def test_a_body_has_exactly_the_runs_sequences(items):
    assert isinstance(decode_body(encode(items), MANIFEST), Fault)


def test_an_oversize_body_is_refused_unread():
    limit = body_bytes_max(MANIFEST)
    assert decode_body(bytes(limit + 1), MANIFEST).code == "oversize"
    assert decode_body(bytes(limit), MANIFEST).code != "oversize"


def test_all_nodes_have_the_same_limit():
    sampling = {"tokens_max": 100, "group_size": 2, "prompts_per_rollout": 3}
    for precision, proof_bytes in (("fp32", 258), ("bf16", 130)):
        toploc = {"precision": precision, "top_k": 64, "chunk_tokens": 32}
        manifest = run_manifest(sampling=sampling, toploc=toploc)
        sequence_bytes = 8 * 100 + 4 * (proof_bytes + 5) + 128
        assert body_bytes_max(manifest) == 6 * sequence_bytes + 64


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("top_k", [1, 64, 128, 1024])
@pytest.mark.parametrize("chunk_tokens", [1, 7, 32])
@pytest.mark.parametrize("tokens_max", [1, 8, 100, 3000])
def test_the_largest_honest_body_fits(precision, top_k, chunk_tokens, tokens_max):
    manifest = run_manifest(
        sampling={"tokens_max": tokens_max},
        toploc={"precision": precision, "top_k": top_k, "chunk_tokens": chunk_tokens},
    )
    chunks = -(-tokens_max // chunk_tokens)
    proofs = (bytes(ProofLayout(Variant(precision), chunk_tokens, top_k).proof_bytes),) * chunks
    sequence = RolloutSequence((1,) * tokens_max, (-1.0,) * tokens_max, REWARD_SCALE, proofs)
    assert len(encode_body([sequence] * 4)) <= body_bytes_max(manifest)

"""Proofs of an untrusted peer give a fault value or statistics, never an exception."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.toploc.layout import FaultKind, ProofFault, Variant
from protocol.toploc.proof import proof_fault
from tests.protocol.toploc.single import build_proofs, verify_proofs

STATES = np.random.default_rng(0).standard_normal((70, 16)).astype(np.float32)
BF16 = (STATES.view(np.uint32) >> 16).astype(np.uint16)
PROOFS = build_proofs(BF16)
BIG = np.random.default_rng(1).standard_normal((32, 2560)).astype(np.float32)


def fault_of(proofs, tokens=70, hidden=16, variant=Variant.BF16, **shape):
    return proof_fault(proofs, tokens, hidden=hidden, variant=variant, **shape)


def patched(proof, word, value):
    return proof[: 2 * word] + value.to_bytes(2, "big") + proof[2 * word + 2 :]


def with_second(proof):
    return [PROOFS[0], proof, PROOFS[2]]


def test_honest_proofs_have_no_fault():
    assert fault_of(PROOFS) is None
    assert fault_of(build_proofs(STATES), variant=Variant.FP32) is None


@pytest.mark.parametrize(
    ("proofs", "chunk"),
    [([], 0), (PROOFS[:2], 2), (PROOFS[:1], 1), ([*PROOFS, PROOFS[0]], 3)],
)
def test_missing_and_surplus_proofs(proofs, chunk):
    assert fault_of(proofs) == ProofFault(FaultKind.COUNT, chunk)
    with pytest.raises(ValueError, match="proofs for 3 chunks"):
        verify_proofs(BF16, proofs)


@pytest.mark.parametrize("proof", [b"", b"\xff", PROOFS[1][:-1], PROOFS[1] + b"\0", PROOFS[1] * 2])
def test_wrong_lengths(proof):
    assert fault_of(with_second(proof)) == ProofFault(FaultKind.LENGTH, 1)


def test_the_other_variant_has_a_wrong_length():
    assert fault_of(PROOFS, variant=Variant.FP32) == ProofFault(FaultKind.LENGTH, 0)


@pytest.mark.parametrize("modulus", [0, 1, 32767, 32768, 65496, 65498, 65535])
def test_a_chunk_without_collisions_has_one_modulus(modulus):
    proofs = with_second(patched(PROOFS[1], 0, modulus))
    assert fault_of(proofs) == ProofFault(FaultKind.MODULUS, 1)


@pytest.mark.parametrize(
    ("modulus", "valid"),
    [(0, False), (1, False), (32767, False), (32768, True), (65497, True), (65498, False)],
)
def test_a_big_chunk_has_a_range_of_moduli(modulus, valid):
    proofs = [patched(build_proofs(BIG)[0], 0, modulus)]
    fault = fault_of(proofs, 32, 2560, Variant.FP32)
    assert fault == (None if valid else ProofFault(FaultKind.MODULUS, 0))
    if valid:
        verify_proofs(BIG, proofs)


def test_a_null_proof():
    fault = fault_of(with_second(bytes(258)))
    assert fault == ProofFault(FaultKind.MODULUS, 1)
    assert str(fault) == "modulus of chunk 1"


@pytest.mark.parametrize("word", [1, 64, 128])
@pytest.mark.parametrize(("value", "valid"), [(65496, True), (65497, False), (65535, False)])
def test_coefficients_are_below_the_prime(word, value, valid):
    fault = fault_of(with_second(patched(PROOFS[1], word, value)))
    assert fault == (None if valid else ProofFault(FaultKind.COEFFICIENT, 1))


@pytest.mark.parametrize("word", [5, 16, 21, 32])
def test_unused_coefficients_are_zero_in_both_halves(word):
    proof = build_proofs(STATES[:1, :4], top_k=16)[0]
    kwargs = {"tokens": 1, "hidden": 4, "variant": Variant.FP32, "top_k": 16}
    assert fault_of([proof], **kwargs) is None
    fault = fault_of([patched(proof, word, 1)], **kwargs)
    assert fault == ProofFault(FaultKind.PADDING, 0)


def test_impossible_arguments_are_our_own_fault():
    for tokens, hidden in ((-1, 16), (4, 0)):
        with pytest.raises(ValueError, match="no states have the shape"):
            fault_of([], tokens, hidden)
    with pytest.raises(ValueError, match="a chunk holds"):
        fault_of([], 4, 2**27)
    with pytest.raises(ValueError, match="top_k"):
        fault_of([], top_k=0)


proofs_from_outside = st.lists(
    st.binary(max_size=12)
    | st.binary(min_size=258, max_size=258)
    | st.binary(min_size=256, max_size=256).map(lambda tail: b"\xff\xd9" + tail)
    | st.sampled_from([*PROOFS, bytes(258), b"\xff" * 258]),
    max_size=5,
)


@settings(max_examples=300, deadline=None)
@given(proofs_from_outside)
def test_no_bytes_raise(proofs):
    fault = fault_of(proofs)
    if fault is None:
        assert len(verify_proofs(BF16, proofs)) == 3
    else:
        with pytest.raises(ValueError, match=r"proofs for|malformed"):
            verify_proofs(BF16, proofs)


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2), st.integers(0, 257), st.integers(1, 255))
def test_a_changed_byte_is_a_fault_or_an_error(chunk, offset, change):
    proof = bytearray(PROOFS[chunk])
    proof[offset] ^= change
    proofs = [*PROOFS]
    proofs[chunk] = bytes(proof)
    if fault_of(proofs) is None:
        result = verify_proofs(BF16, proofs)[chunk]
        # The constant coefficient shifts every value by the same: one unit is a small error.
        shifted = offset in {2, 3} and result.mantissa_error_mean >= 0.5
        assert shifted or result.exponent_mismatches > 4, "more than the testnet allows"


@settings(max_examples=30, deadline=None)
@given(st.integers(32768, 65497), st.integers(0, 2**32))
def test_any_well_formed_proof_of_a_big_chunk_verifies_to_finite_statistics(modulus, seed):
    words = np.random.default_rng(seed).integers(0, 65497, 257).astype(">u2")
    words[0] = modulus
    assert fault_of([words.tobytes()], 32, 2560, Variant.FP32) is None
    (result,) = verify_proofs(BIG, [words.tobytes()])
    assert 0 <= result.exponent_mismatches <= 128
    assert 0 <= result.mantissa_error_median <= 2.0**64
    assert 0 <= result.mantissa_error_mean <= 2.0**64

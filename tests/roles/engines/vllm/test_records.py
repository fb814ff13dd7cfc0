"""Records of unfinished sequences; tests of vLLM itself are in tests/live."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from protocol.toploc.layout import Variant
from protocol.toploc.proof import build_covered_proofs, build_proofs_batch
from roles.engines.builtin.generation import as_states
from roles.engines.vllm.records import Records, covered

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
HIDDEN, CHUNK, TOP_K = 16, 4, 12


def states_of(seed, tokens, dtype, *, coarse=False):
    """Return states ``[tokens, HIDDEN]``; coarse ones have many equal magnitudes and zeros."""
    states = torch.randn(tokens, HIDDEN, generator=torch.Generator().manual_seed(seed))
    return (states.round() / 2 if coarse else states).to(dtype)


@given(
    st.integers(0, 2**31),
    st.lists(st.integers(1, CHUNK), min_size=1, max_size=20),
    st.sampled_from(["bf16", "fp32"]),
    st.booleans(),
    st.integers(1, HIDDEN * CHUNK),
)
def test_what_is_selected_on_the_device_gives_the_proofs_of_the_protocol(
    seed, lengths, precision, coarse, top_k
):
    whole = [
        states_of(seed + number, CHUNK, DTYPES[precision], coarse=coarse)
        for number in range(len(lengths))
    ]
    chunks = covered(torch.stack(whole), lengths, top_k)
    ours = build_covered_proofs(chunks, Variant(precision), top_k=top_k)
    rows = [as_states(one[:length]) for one, length in zip(whole, lengths, strict=True)]
    theirs = build_proofs_batch(rows, chunk_tokens=CHUNK, top_k=top_k)
    assert [[one] for one in ours] == theirs


@pytest.mark.parametrize("value", [np.inf, np.nan])
@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_states_that_are_not_finite_have_no_proof(value, precision):
    states = states_of(1, CHUNK, DTYPES[precision])
    states[2, 3] = value
    chunks = covered(states[None], [CHUNK], TOP_K)
    with pytest.raises(ValueError, match="finite"):
        build_covered_proofs(chunks, Variant(precision), top_k=TOP_K)


@pytest.fixture
def records():
    return Records(HIDDEN, torch.float32, torch.device("cpu"), CHUNK, TOP_K)


def add(records, numbers, position, states, tokens=None):
    drawn = torch.tensor(tokens or [position] * len(numbers))
    records.add(numbers, [position] * len(numbers), states, drawn, -drawn.float())


def proofs(record):
    return build_covered_proofs(record.chunks, Variant.FP32, top_k=TOP_K)


def expected(states):
    return build_proofs_batch([as_states(states)], chunk_tokens=CHUNK, top_k=TOP_K)[0]


def test_each_sequence_has_its_own_states_whatever_its_length_and_company(records):
    lengths = {number: number + 1 for number in range(11)}
    states = {
        number: states_of(number, length, torch.float32) for number, length in lengths.items()
    }
    for position in range(11):
        alive = [number for number in lengths if lengths[number] > position]
        rows = list(reversed(alive)) if position % 2 else alive
        add(records, rows, position, torch.stack([states[number][position] for number in rows]))
        for number in [number for number in alive if lengths[number] == position + 1]:
            (record,) = records.take([number])
            assert record.tokens == list(range(lengths[number]))
            assert record.logprobs == [-float(token) for token in record.tokens]
            assert proofs(record) == expected(states[number])


def test_a_token_that_is_drawn_again_replaces_the_first(records):
    """vLLM samples after each part of a prompt, and discards all but the last token."""
    states = states_of(5, 6, torch.float32)
    for _ in range(3):
        add(records, [7], 0, states_of(9, 1, torch.float32), [30])
    for position in range(6):
        add(records, [7], position, states[position : position + 1])
    (record,) = records.take([7])
    assert record.tokens == [0, 1, 2, 3, 4, 5]
    assert proofs(record) == expected(states)


def test_a_chunk_of_one_token_that_is_drawn_again_has_one_proof():
    records = Records(HIDDEN, torch.float32, torch.device("cpu"), 1, TOP_K)
    states = states_of(5, 2, torch.float32)
    add(records, [7], 0, states_of(9, 1, torch.float32))
    for position in range(2):
        add(records, [7], position, states[position : position + 1])
    (record,) = records.take([7])
    assert len(record.chunks) == 2
    own = build_proofs_batch([as_states(states)], chunk_tokens=1, top_k=TOP_K)[0]
    assert proofs(record) == own


def test_a_sequence_that_is_put_off_keeps_its_states_while_others_need_room(records):
    states = states_of(1, 4, torch.float32)
    for position in range(2):
        add(records, [1], position, states[position : position + 1])
    for number in range(2, 40):
        add(records, [number], 0, states_of(number, 1, torch.float32))
    for position in range(2, 4):
        add(records, [1], position, states[position : position + 1])
    assert proofs(records.take([1])[0]) == expected(states)


def test_places_are_used_again(records):
    for number in range(100):
        add(records, [number], 0, states_of(number, 1, torch.float32))
        if number % 2:
            records.take([number])
        else:
            records.forget()
    assert len(records._states) <= 2


def test_a_token_that_was_not_noted_is_an_error(records):
    add(records, [1], 0, states_of(1, 1, torch.float32))
    with pytest.raises(RuntimeError, match="not recorded"):
        add(records, [1], 2, states_of(1, 1, torch.float32))

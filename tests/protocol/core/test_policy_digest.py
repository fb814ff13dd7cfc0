from hypothesis import given
from hypothesis import strategies as st

from protocol.core.crypto import digest, policy_digest
from protocol.core.types import Digest

WEIGHT = ("lm_head.weight", "F32", (2, 3), digest(b"a"))
BIAS = ("lm_head.bias", "F32", (3,), digest(b"b"))


@given(
    st.permutations([WEIGHT, BIAS, ("x", "BF16", (), digest(b"c")), (*WEIGHT[:3], digest(b"d"))])
)
def test_the_order_of_tensors_does_not_matter(tensors):
    assert policy_digest(tensors) == policy_digest(sorted(tensors))


def test_every_part_of_a_tensor_matters():
    others = [
        ("lm_head.weights", *WEIGHT[1:]),
        (WEIGHT[0], "BF16", *WEIGHT[2:]),
        (*WEIGHT[:2], (3, 2), WEIGHT[3]),
        (*WEIGHT[:3], Digest(bytes(32))),
    ]
    digests = [policy_digest([BIAS, tensor]) for tensor in [WEIGHT, *others]]
    assert len(set(digests)) == 5
    assert policy_digest([WEIGHT]) not in digests

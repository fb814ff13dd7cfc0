from contextlib import suppress
from hashlib import sha512

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from nacl.bindings import (
    crypto_core_ed25519_add,
    crypto_scalarmult_ed25519_base_noclamp,
    crypto_scalarmult_ed25519_noclamp,
)
from nacl.exceptions import RuntimeError as SodiumError

from protocol.core.crypto import Identity, digest
from protocol.core.vrf import OUTPUT_BYTES, PROOF_BYTES, output, prove

GROUP_ORDER = 2**252 + 27742317777372353535851937790883648493

EXAMPLES = {
    16: (
        "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60",
        "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
        "",
        (
            "8657106690b5526245a92b003bb079ccd1a92130477671f6fc01ad16f26f723f"
            "26f8a57ccaed74ee1b190bed1f479d97"
            "27d2d0f9b005a6e456a35d4fb0daab1268a1b0db10836d9826a528ca76567805"
        ),
        (
            "90cf1df3b703cce59e2a35b925d411164068269d7b2d29f3301c03dd757876ff"
            "66b71dda49d2de59d03450451af026798e8f81cd2e333de5cdf4f3e140fdd8ae"
        ),
    ),
    17: (
        "4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb",
        "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
        "72",
        (
            "f3141cd382dc42909d19ec5110469e4feae18300e94f304590abdced48aed593"
            "3bf0864a62558b3ed7f2fea45c92a465"
            "301b3bbf5e3e54ddf2d935be3b67926da3ef39226bbc355bdc9850112c8f4b02"
        ),
        (
            "eb4440665d3891d668e7e0fcaf587f1b4bd7fbfe99d0eb2211ccec90496310eb"
            "5e33821bc613efb94db5e5b54c70a848a0bef4553a41befc57663b56373a5031"
        ),
    ),
    18: (
        "c5aa8df43f9f837bedb7442f31dcb7b166d38535076f094b85ce3a2e0b4458f7",
        "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025",
        "af82",
        (
            "9bc0f79119cc5604bf02d23b4caede71393cedfbb191434dd016d30177ccbf80"
            "96bb474e53895c362d8628ee9f9ea3c0"
            "e52c7a5c691b6c18c9979866568add7a2d41b00b05081ed0f58ee5e31b3a970e"
        ),
        (
            "645427e5d00c62a23fb703732fa5d892940935942101e456ecca7bb217c61c45"
            "2118fec1219202a0edcf038bb6373241578be7217ba85a2687f7a0310b2df19f"
        ),
    ),
}
"""RFC 9381, appendix B.3: secret key, public key, alpha, pi, beta."""

TORSION = [
    bytes.fromhex(text)
    for text in (
        "01" + 31 * "00",
        "ec" + 30 * "ff" + "7f",
        32 * "00",
        31 * "00" + "80",
        "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
        "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc85",
        "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
        "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac03fa",
    )
]
"""The eight points of low order."""

SEED = digest(b"a key")
KEY = Identity(SEED).public_key
ALPHA = b"an input"
PROOF = prove(SEED, KEY, ALPHA)

seeds = st.binary(min_size=32, max_size=32)


@pytest.mark.parametrize("number", sorted(EXAMPLES))
def test_the_examples_of_the_rfc(number):
    seed, key, alpha, proof, expected = map(bytes.fromhex, EXAMPLES[number])
    assert prove(seed, key, alpha) == proof
    assert output(key, alpha, proof) == expected


@given(seeds, st.binary(max_size=200))
def test_a_proof_shows_the_output_of_its_key_and_input_only(seed, alpha):
    key = Identity(seed).public_key
    proof = prove(seed, key, alpha)
    assert len(proof) == PROOF_BYTES
    assert prove(seed, key, alpha) == proof
    shown = output(key, alpha, proof)
    assert shown is not None
    assert len(shown) == OUTPUT_BYTES
    assert output(KEY, alpha, proof) is None or key == KEY
    assert output(key, alpha + b"\x00", proof) is None
    other = prove(seed, key, alpha + b"\x00")
    assert output(key, alpha + b"\x00", other) != shown


@given(st.integers(0, 8 * PROOF_BYTES - 1))
def test_a_proof_with_one_flipped_bit_is_refused(bit):
    flipped = (int.from_bytes(PROOF, "little") ^ 1 << bit).to_bytes(PROOF_BYTES, "little")
    assert output(KEY, ALPHA, flipped) is None


@given(st.integers(0, 255))
def test_a_proof_for_a_key_with_one_flipped_bit_is_refused(bit):
    flipped = (int.from_bytes(KEY, "little") ^ 1 << bit).to_bytes(32, "little")
    assert output(flipped, ALPHA, PROOF) is None


@pytest.mark.parametrize("length", [0, 1, 32, 79, 81, 160])
def test_a_proof_of_another_length_is_refused(length):
    assert output(KEY, ALPHA, (PROOF + PROOF)[:length]) is None


@pytest.mark.parametrize("length", [0, 31, 33, 64])
def test_a_key_of_another_length_is_refused(length):
    assert output((KEY + KEY)[:length], ALPHA, PROOF) is None


def test_a_scalar_is_smaller_than_the_order_of_the_group():
    """The same scalar modulo the order would be a second proof of one output."""
    scalar = int.from_bytes(PROOF[48:], "little")
    for multiple in range(1, 2**256 // GROUP_ORDER):
        larger = (scalar + multiple * GROUP_ORDER).to_bytes(32, "little")
        assert output(KEY, ALPHA, PROOF[:48] + larger) is None
    for edge in (0, GROUP_ORDER, 2**256 - 1):
        assert output(KEY, ALPHA, PROOF[:48] + edge.to_bytes(32, "little")) is None


@pytest.mark.parametrize("point", TORSION)
def test_points_of_low_and_of_mixed_order_are_refused(point):
    """Such a key has several outputs for one input."""
    rest = PROOF[32:]
    for spoilt in (point, crypto_core_ed25519_add(PROOF[:32], point)):
        if spoilt != PROOF[:32]:
            assert output(KEY, ALPHA, spoilt + rest) is None
    for spoilt in (point, crypto_core_ed25519_add(KEY, point)):
        if spoilt != KEY:
            assert output(spoilt, ALPHA, PROOF) is None
            assert output(spoilt, ALPHA, prove(SEED, spoilt, ALPHA)) is None


def hash_to_curve(key: bytes, alpha: bytes) -> bytes:
    for counter in range(256):
        point = sha512(b"\x03\x01" + key + alpha + bytes([counter, 0])).digest()[:32]
        with suppress(SodiumError):
            for _ in range(3):
                point = crypto_core_ed25519_add(point, point)
            return point
    raise AssertionError


@pytest.mark.parametrize("key", TORSION)
def test_a_forged_proof_with_a_key_of_low_order_is_refused(key):
    """Anybody makes it, if the verifier checks no points: the challenge removes key and gamma."""
    point, gamma = hash_to_curve(key, ALPHA), TORSION[0]
    for number in range(1, 10_000):
        scalar = number.to_bytes(32, "little")
        announced = (
            crypto_scalarmult_ed25519_base_noclamp(scalar),
            crypto_scalarmult_ed25519_noclamp(scalar, point),
        )
        text = b"\x03\x02" + key + point + gamma + b"".join(announced) + b"\x00"
        challenge = sha512(text).digest()[:16]
        if challenge[0] % 8 == 0:
            assert output(key, ALPHA, gamma + challenge + scalar) is None
            return
    raise AssertionError


@given(st.binary(min_size=PROOF_BYTES, max_size=PROOF_BYTES), seeds)
@example(bytes(PROOF_BYTES), KEY)
@example(PROOF[:32] + bytes(48), KEY)
@example(b"\xff" * PROOF_BYTES, KEY)
@example(PROOF[:79] + b"\x80", bytes(32))
@example(PROOF[:32] + bytes(16) + PROOF[48:], KEY)
def test_no_bytes_raise(proof, key):
    for one in (key, KEY):
        assert output(one, ALPHA, proof) is None

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.core.codec import encode
from protocol.core.faults import Fault, FaultCode
from protocol.run.model_files import BUNDLE_BYTES_MAX, BUNDLE_FILES, decode_bundle, encode_bundle

FILES = st.dictionaries(st.sampled_from(BUNDLE_FILES), st.binary(max_size=50))


@given(FILES)
def test_a_bundle_is_read_back_and_has_one_encoding(files):
    encoded = encode_bundle(files)
    assert decode_bundle(encoded) == files
    assert encode_bundle(dict(reversed(files.items()))) == encoded


@pytest.mark.parametrize("name", ["../tokenizer.json", "model.safetensors", "", "/etc/passwd"])
def test_no_other_name_is_in_one(name):
    with pytest.raises(ValueError, match="holds no"):
        encode_bundle({name: b""})
    assert decode_bundle(encode({name: b""})) == Fault(
        FaultCode.BAD_BUNDLE, "not a map of known names to bytes"
    )


@pytest.mark.parametrize("value", [[], {"config.json": "text"}, {"config.json": {}}, 1])
def test_what_is_no_bundle_is_a_fault(value):
    found = decode_bundle(encode(value))
    assert isinstance(found, Fault) and found.code is FaultCode.BAD_BUNDLE


@given(st.binary(max_size=100))
def test_any_bytes_are_a_bundle_or_a_fault(data):
    assert isinstance(decode_bundle(data), Fault | dict)


def test_it_is_bounded():
    whole = BUNDLE_BYTES_MAX - len(encode({"config.json": bytes(2**16)})) + 2**16
    assert len(encode_bundle({"config.json": bytes(whole)})) == BUNDLE_BYTES_MAX
    with pytest.raises(ValueError, match="limit"):
        encode_bundle({"config.json": bytes(whole + 1)})
    assert decode_bundle(encode({"config.json": bytes(whole + 1)})).code is FaultCode.OVERSIZE

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.local.units import bytes_text, duration_text, parse_bytes, parse_rate


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("0B", 0),
        ("17 B", 17),
        ("1kB", 1000),
        ("1.5 MB", 1_500_000),
        ("20GiB", 20 * 2**30),
        ("2tb", 2 * 10**12),
    ],
)
def test_sizes(text, count):
    assert parse_bytes(text) == count


@pytest.mark.parametrize(
    ("text", "count"), [("20MB/s", 20_000_000), ("160Mbit", 20_000_000), ("8 kbit/s", 1000)]
)
def test_rates(text, count):
    assert parse_rate(text) == count


@pytest.mark.parametrize("text", ["", "MB", "-1", "1e9", "1 XB", "1 Mbit", "٣MB", "1MB/h"])
def test_what_is_no_size(text):
    with pytest.raises(ValueError, match="is not a size such as"):
        parse_bytes(text)


@pytest.mark.parametrize("parse", [parse_bytes, parse_rate])
def test_a_number_without_a_unit_is_refused(parse):
    """An operator that writes 20 means megabytes, and would get 20 bytes per second."""
    with pytest.raises(ValueError, match="'20' has no unit; write a"):
        parse("20")


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1 kB"),
        (1234, "1.23 kB"),
        (999_600, "1 MB"),
        (62e9, "62 GB"),
        (5e15, "5000 TB"),
    ],
)
def test_bytes_for_people(count, text):
    assert bytes_text(count) == text


@given(st.integers(min_value=0, max_value=10**15))
def test_bytes_for_people_read_back_within_one_percent(count):
    assert parse_bytes(bytes_text(count)) == pytest.approx(count, rel=0.01)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-1, "0 s"),
        (0.4, "0 s"),
        (59, "59 s"),
        (200, "3 min 20 s"),
        (3600, "1 h"),
        (187_200, "2 d 4 h"),
    ],
)
def test_durations(seconds, text):
    assert duration_text(seconds) == text

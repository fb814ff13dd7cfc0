from protocol.types import Fault


def test_a_fault_reads_as_one_line():
    assert str(Fault("oversize")) == "oversize"
    assert str(Fault("oversize", "9 bytes, limit 8")) == "oversize: 9 bytes, limit 8"

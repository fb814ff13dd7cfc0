from protocol.core.faults import Fault, FaultCode


def test_a_fault_reads_as_one_line():
    assert str(Fault(FaultCode.OVERSIZE)) == "oversize"
    assert str(Fault(FaultCode.OVERSIZE, "9 bytes, limit 8")) == "oversize: 9 bytes, limit 8"

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.network.connections.dial_policy import (
    HOSTS_MAX,
    SILENT_DIALS_MAX,
    SILENT_SECONDS,
    DialPolicy,
)

PUBLIC, LOCAL = "/ip4/8.8.8.8/tcp/1/p2p/a", "/ip4/192.168.1.1/tcp/80/p2p/a"
LOOP, METADATA = "/ip4/127.0.0.1/tcp/22/p2p/a", "/ip4/169.254.169.254/tcp/80/p2p/a"
ALL = [PUBLIC, LOCAL, LOOP, METADATA]


@pytest.mark.parametrize(
    ("initial", "own", "dialled"),
    [
        ([PUBLIC], [LOCAL], [PUBLIC]),  # a worker at home, in a run on the internet
        ([LOCAL], [LOCAL], ALL),
        ([LOOP], [LOOP, LOCAL], ALL),  # a testnet
        ([], [LOOP, LOCAL], ALL),
        ([], [LOOP, "/ip4/9.9.9.9/tcp/1"], [PUBLIC]),
    ],
)
def test_local_addresses_are_dialled_in_swarms_of_their_network_only(initial, own, dialled):
    assert DialPolicy(initial).allowed(ALL, own, 0.0) == dialled


def test_configured_addresses_are_always_dialled():
    dials = DialPolicy([PUBLIC])
    for _ in range(9):
        dials.note(PUBLIC, 0.0, answered=False)
    assert dials.allowed([PUBLIC], [], 0.0) == [PUBLIC]


def test_a_silent_host_is_left_alone_whatever_keys_point_at_it():
    dials, start = DialPolicy(["/ip4/1.1.1.1/tcp/1/p2p/boot"]), 100.0
    pointing = [f"/ip4/8.8.8.8/tcp/{port}/p2p/key{port}" for port in range(20)]
    dialled = 0
    for address in pointing:
        if dials.allowed([address], [], start):
            dialled += 1
            dials.note(address, start, answered=False)
    assert dialled == SILENT_DIALS_MAX
    assert dials.allowed(["/ip4/8.8.4.4/tcp/1/p2p/a"], [], start)
    assert not dials.allowed(pointing, [], start + SILENT_SECONDS - 1)
    assert dials.allowed(pointing, [], start + SILENT_SECONDS)


def test_a_host_that_answers_is_dialled_again():
    dials = DialPolicy(["/ip4/1.1.1.1/tcp/1/p2p/boot"])
    for _ in range(SILENT_DIALS_MAX):
        dials.note(PUBLIC, 0.0, answered=False)
    dials.note(PUBLIC, 1.0, answered=True)
    assert dials.allowed([PUBLIC], [], 1.0)


RELAY = "/ip4/8.8.4.4/tcp/1/p2p/relay"
THROUGH = f"{RELAY}/p2p-circuit/p2p/a"


def test_only_a_relay_that_says_so_is_a_way_to_somebody():
    behind_nobody = "/ip4/8.8.8.8/tcp/1/p2p/relay/p2p-circuit/p2p/a"
    behind_local = "/ip4/10.0.0.1/tcp/1/p2p/relay/p2p-circuit/p2p/a"
    dials = DialPolicy(
        [PUBLIC], lambda address: address != behind_nobody.partition("/p2p-circuit")[0]
    )
    assert dials.allowed([THROUGH, behind_nobody, behind_local], [], 0.0) == [THROUGH]
    assert DialPolicy([PUBLIC]).allowed([THROUGH], [], 0.0) == []
    assert DialPolicy([THROUGH]).allowed([THROUGH], [], 0.0) == [THROUGH]


def test_failed_circuit_does_not_count_against_its_relay():
    dials = DialPolicy([PUBLIC], lambda _address: True)
    for _ in range(SILENT_DIALS_MAX):
        dials.note(THROUGH, 0.0, answered=False)
    other = f"{RELAY}/p2p-circuit/p2p/b"
    assert dials.allowed([THROUGH, RELAY, other], [], 1.0) == [RELAY, other]


@given(st.lists(st.tuples(st.integers(0, 3000), st.booleans()), max_size=400))
def test_failed_hosts_are_bounded(dialled):
    dials = DialPolicy([])
    for number, (host, answered) in enumerate(dialled * 8):
        address = f"/ip4/9.{host >> 8}.{host & 255}.{number % 5}/tcp/1/p2p/a"
        dials.note(address, float(number), answered=answered)
    (table,) = dials.tables
    assert len(table) <= HOSTS_MAX
    assert all(len(times) <= SILENT_SECONDS + 1 for times in table.values())


def test_dials_on_their_way_count_as_those_that_were_in_vain():
    dials = DialPolicy(["/ip4/9.9.9.9/tcp/1/p2p/boot"])
    keys = [f"/ip4/8.8.8.8/tcp/{port}/p2p/key" for port in range(SILENT_DIALS_MAX + 1)]
    dials.note(keys[0], 0.0, answered=False)
    with dials.dialling(keys[1 : SILENT_DIALS_MAX - 1]):
        assert dials.allowed(keys[-1:], [], 1.0) == keys[-1:]
        with dials.dialling(keys[:1]):
            assert dials.allowed(keys[-1:], [], 1.0) == []
    assert dials.allowed(keys[-1:], [], 1.0) == keys[-1:]

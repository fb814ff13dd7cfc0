import asyncio
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import pytest_asyncio
from hivemind.p2p import P2P, PeerID
from hivemind.utils.multiaddr import Multiaddr

from node.live import control, hivemind_p2p, p2pd
from node.live.hivemind_p2p import HivemindTransport
from node.live.p2pd import P2pd, P2pdError, P2pdOptions, StartFault
from node.network.streams.protocols import HOP
from protocol.core.crypto import Identity
from protocol.core.types import PeerId
from roles.ports.transport import Stream, TransportError
from tests.live.waiting import PATIENCE_SECONDS, eventually

pytestmark = [pytest.mark.live, pytest.mark.asyncio(loop_scope="module")]

ECHO = "/prime-test/echo"
STALL = "/prime-test/stall"
BROKEN = "/prime-test/broken"
STALL_ENDS = asyncio.Event()


async def echo(stream: Stream) -> None:
    while data := await stream.read(1 << 16):
        await stream.write(data)


async def stall(stream: Stream) -> None:
    await STALL_ENDS.wait()


async def broken(stream: Stream) -> None:
    raise KeyError("a bug")


async def start(directory: Path, seed: int, **options) -> HivemindTransport:
    identity = Identity(bytes([seed]) * 32)
    path = directory / f"{seed}.key"
    path.write_bytes(identity.to_protobuf())
    return await HivemindTransport.create(identity, path, P2pdOptions(**options))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def keys(tmp_path_factory):
    return tmp_path_factory.mktemp("keys")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pair(keys):
    left, right = await asyncio.gather(start(keys, 1), start(keys, 2))
    for transport in (left, right):
        for protocol, handler in ((ECHO, echo), (STALL, stall), (BROKEN, broken)):
            await transport.handle(protocol, handler)
    await left.connect((await right.addresses())[0])
    yield left, right
    await asyncio.gather(left.close(), right.close())


async def connects(left: HivemindTransport, right: HivemindTransport) -> None:
    """Connect, however often p2pd refuses to repeat a failed dial."""

    async def connected() -> bool:
        try:
            return await left.connect((await right.addresses())[0]) == right.peer_id
        except TransportError:
            return False

    await eventually(connected)


async def echoes(left: HivemindTransport, right: HivemindTransport, data: bytes) -> bool:
    stream = await left.open_stream(right.peer_id, ECHO)
    _, answer = await asyncio.gather(stream.write(data), stream.read_exactly(len(data)))
    await stream.close()
    return answer == data


async def test_the_host_of_a_peer_is_where_its_connection_comes_from(pair):
    left, right = pair
    await connects(left, right)
    for one, other in (pair, pair[::-1]):
        assert one.host_of(PeerId("12D3KooWnobody")) is None
        await one.peers()
        assert one.host_of(other.peer_id) == "127.0.0.1"


@pytest.mark.parametrize(
    ("address", "host"),
    [
        ("/ip4/203.0.113.7/tcp/4001", "203.0.113.7"),
        ("/ip4/203.0.113.7/udp/4001", None),
        ("/ip6/2001:db8::1/tcp/4001", None),
        ("/dns4/example.org/tcp/4001", None),
        (f"/ip4/203.0.113.7/tcp/4001/p2p/{Identity(bytes(32)).peer_id}/p2p-circuit", None),
    ],
)
async def test_only_plain_tcp_over_ipv4_tells_a_host(address, host):
    assert control.ipv4_of(Multiaddr(address).to_bytes()) == host


async def test_an_address_is_tried_although_its_peer_is_connected(pair):
    """Only a handshake proves the key at an address; an open connection does not."""
    left, right = pair
    (address,) = await right.addresses()
    await left.probe(address)
    base = address.rpartition("/p2p/")[0]
    for wrong in (
        f"{base}/p2p/{left.peer_id}",  # another peer answers
        f"{base.rpartition('/')[0]}/1/p2p/{right.peer_id}",  # no peer answers
        f"/ip4/127.0.0.1/udp/1/quic/p2p/{right.peer_id}",
        f"/unix/p2p/{right.peer_id}",
    ):
        with pytest.raises(TransportError):
            await left.probe(wrong)


async def test_a_server_that_is_not_libp2p_is_not_taken_for_it(pair):
    left, right = pair

    async def says_ok(_reader, writer):
        writer.write(b"HTTP/1.0 200 OK\r\n\r\n" * 10)
        writer.close()

    server = await asyncio.start_server(says_ok, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    with pytest.raises(TransportError):
        await left.probe(f"/ip4/127.0.0.1/tcp/{port}/p2p/{right.peer_id}")
    server.close()


async def test_both_ends_know_where_the_other_is(pair):
    left, right = pair
    for one, other in ((left, right), (right, left)):
        (address,) = await one.remote_addresses(other.peer_id)
        assert address.startswith("/ip4/127.0.0.1/tcp/")
    assert await left.remote_addresses(Identity(bytes([77]) * 32).peer_id) == []


async def test_addresses_and_streams_carry_the_id_of_the_key(pair):
    left, right = pair
    assert left.peer_id == Identity(bytes([1]) * 32).peer_id
    assert all(address.endswith(f"/p2p/{right.peer_id}") for address in await right.addresses())
    assert await left.connect((await right.addresses())[0]) == right.peer_id
    assert right.peer_id in await left.peers()
    assert left.peer_id in await right.peers()
    met = asyncio.get_running_loop().create_future()

    async def meet(stream: Stream) -> None:
        met.set_result(stream.peer)

    await right.handle("/prime-test/meet", meet)
    stream = await left.open_stream(right.peer_id, "/prime-test/meet")
    assert stream.peer == right.peer_id
    assert await asyncio.wait_for(met, PATIENCE_SECONDS) == left.peer_id
    await stream.close()


@pytest.mark.parametrize("size", [1, 1000, 10 << 20])
async def test_echo_both_ways(pair, size):
    left, right = pair
    data = os.urandom(size)
    assert await echoes(left, right, data)
    assert await echoes(right, left, data)


async def test_what_was_written_before_close_arrives(pair):
    left, right = pair
    received = asyncio.get_running_loop().create_future()

    async def collect(stream: Stream) -> None:
        total = 0
        while data := await stream.read(1 << 18):
            total += len(data)
        received.set_result(total)

    await right.handle("/prime-test/collect", collect)
    stream = await left.open_stream(right.peer_id, "/prime-test/collect")
    await stream.write(bytes(10 << 20))
    await stream.close()
    await stream.close()
    with pytest.raises(TransportError):
        await stream.write(b"late")
    assert await asyncio.wait_for(received, PATIENCE_SECONDS) == 10 << 20


async def test_an_unsupported_protocol_is_refused_quickly(pair):
    left, right = pair
    with pytest.raises(TransportError, match="protocols not supported"):
        await left.open_stream(right.peer_id, "/prime-test/unknown")


async def test_p2pd_itself_relays_for_nobody(pair):
    left, right = pair
    await connects(left, right)
    with pytest.raises(TransportError, match="protocols not supported"):
        await left.open_stream(right.peer_id, HOP.name)


@pytest.mark.parametrize(
    "address",
    [
        "/ip4/9.9.9.9/tcp/1/p2p/QmNoKeyOfOurs/p2p-circuit",
        f"/ip4/9.9.9.9/tcp/1/p2p/{Identity(bytes(32)).peer_id}/p2p-circuit/tcp/1",
        f"/nonsense/p2p/{Identity(bytes(32)).peer_id}/p2p-circuit",
    ],
)
async def test_what_is_no_way_through_a_relay_is_refused(address):
    with pytest.raises(TransportError):
        control.binary_address(address)


async def test_a_second_handler_for_a_protocol_is_our_mistake(pair):
    with pytest.raises(ValueError, match="has a handler"):
        await pair[0].handle(ECHO, echo)


@pytest.mark.parametrize(
    "address",
    [
        "",
        "/ip4/127.0.0.1/tcp/1",
        "/ip4/127.0.0.1/tcp/1/p2p/QmSnuWmxptJZdLJpKRarxBMS2Ju2oANVrgbr2xWbie9b2D",
        "/nonsense/p2p/12D3KooWJWoaqZhDaoEFshF7Rh1bpY9ohihFhzcW6d69Lr2NASuq",
        "/ip4/127.0.0.1/tcp/1/p2p/12D3KooWHpHQJewAUkxuQXdQjVyboLDPFdUP3mJ2tFXZrGUdDm2m",
    ],
)
async def test_a_bad_or_deaf_address_is_a_transport_error(pair, address):
    with pytest.raises(TransportError):
        await pair[0].connect(address)


async def test_a_name_is_resolved(pair):
    left, right = pair
    address = (await right.addresses())[0].replace("/ip4/127.0.0.1", "/dns4/localhost")
    await left.disconnect(right.peer_id)
    assert await left.connect(address) == right.peer_id


async def test_disconnect_drops_the_connection_and_may_be_repeated(pair):
    left, right = pair
    await left.disconnect(right.peer_id)
    await left.disconnect(right.peer_id)
    assert right.peer_id not in await left.peers()
    await connects(left, right)


async def test_a_stalled_reader_blocks_its_writer_only(pair):
    left, right = pair
    stream = await left.open_stream(right.peer_id, STALL)
    written = 0

    async def flood() -> None:
        nonlocal written
        while written < 256 << 20:
            await stream.write(bytes(1 << 20))
            written += 1 << 20

    with pytest.raises(TimeoutError):
        await asyncio.wait_for(flood(), 2)
    assert written < 64 << 20
    assert await echoes(left, right, b"x" * 1000)
    closing = asyncio.create_task(stream.close())
    await asyncio.sleep(0)
    STALL_ENDS.set()
    await closing


async def test_a_failing_handler_ends_its_stream_and_nothing_else(pair):
    left, right = pair
    stream = await left.open_stream(right.peer_id, BROKEN)
    with pytest.raises(TransportError):
        await asyncio.wait_for(stream.read_exactly(1), PATIENCE_SECONDS)
    await stream.close()
    assert await echoes(left, right, b"still here")


async def test_one_peer_gets_a_bounded_number_of_streams(pair, monkeypatch):
    left, right = pair
    monkeypatch.setattr(hivemind_p2p, "INBOUND_STREAMS_PER_PEER_MAX", 3)
    streams = [await left.open_stream(right.peer_id, ECHO) for _ in range(3)]
    for stream in streams:
        await stream.write(b"x")
        assert await stream.read_exactly(1) == b"x"
    surplus = await left.open_stream(right.peer_id, ECHO)
    with pytest.raises(TransportError):
        await asyncio.wait_for(surplus.read_exactly(1), PATIENCE_SECONDS)
    for stream in [*streams, surplus]:
        await stream.close()

    async def room_again() -> bool:
        stream = await left.open_stream(right.peer_id, ECHO)
        try:
            await stream.write(b"x")
            return await asyncio.wait_for(stream.read_exactly(1), PATIENCE_SECONDS) == b"x"
        except TransportError:
            return False
        finally:
            await stream.close()

    await eventually(room_again)


async def test_hosts_with_default_security_settings_understand_us(pair):
    left, _ = pair
    default = await P2P.create(auto_nat=False, nat_port_map=False)

    async def answer(info, reader, writer) -> None:
        writer.write(info.peer_id.to_base58().encode())
        writer.close()

    await default.add_binary_stream_handler(ECHO, answer)
    await left.connect(str((await default.get_visible_maddrs())[0]))
    stream = await left.open_stream(default.peer_id.to_base58(), ECHO)
    assert (await stream.read_exactly(52)).decode() == left.peer_id
    await stream.close()
    _, reader, writer = await default.call_binary_stream_handler(
        PeerID.from_base58(left.peer_id), ECHO
    )
    writer.write(b"hello")
    assert await reader.readexactly(5) == b"hello"
    writer.close()
    await default.shutdown()


async def test_where_there_are_too_many_connections_those_that_are_kept_end_last(keys, monkeypatch):
    """p2pd prunes every ten seconds; two connections are protected, a third one no longer is."""
    monkeypatch.setattr(p2pd, "CONNECTIONS_HIGH", 4)
    monkeypatch.setattr(p2pd, "CONNECTIONS_LOW", 2)
    others: list[HivemindTransport] = []
    hub = await start(keys, 60)
    try:
        for seed in range(61, 65):
            others.append(await start(keys, seed, hidden=True))  # p2pd's DHT keeps servers
            await others[-1].connect((await hub.addresses())[0])
        await hub.keep([other.peer_id for other in others[:3]])
        await hub.keep([other.peer_id for other in others[:2]])
        for seed in range(65, 68):
            others.append(await start(keys, seed, hidden=True))
            await others[-1].connect((await hub.addresses())[0])

        async def trimmed() -> bool:
            return len(await hub.peers()) <= 2

        await eventually(trimmed)
        assert set(await hub.peers()) == {other.peer_id for other in others[:2]}
    finally:
        await asyncio.gather(hub.close(), *(other.close() for other in others))


async def test_a_dead_peer_is_a_transport_error(pair, keys):
    left, _ = pair
    mortal = await start(keys, 3)
    await mortal.handle(ECHO, echo)
    await left.connect((await mortal.addresses())[0])
    stream = await left.open_stream(mortal.peer_id, ECHO)
    await mortal.close()
    await mortal.close()
    with pytest.raises(TransportError):
        await asyncio.wait_for(stream.read_exactly(1), PATIENCE_SECONDS)
    await stream.close()
    with pytest.raises(TransportError):
        await left.open_stream(mortal.peer_id, ECHO)


async def test_a_killed_p2pd_comes_back_as_it_was(pair):
    left, right = pair
    addresses, pid = await left.addresses(), left.p2pd_pid
    restarted = asyncio.Event()

    async def hook() -> None:
        restarted.set()

    left.on_restart(hook)
    broken_stream = await right.open_stream(left.peer_id, ECHO)
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(TransportError):
        await asyncio.wait_for(broken_stream.read_exactly(1), PATIENCE_SECONDS)
    await broken_stream.close()
    calls = [left.open_stream(right.peer_id, ECHO), left.peers(), left.addresses()]
    async with asyncio.timeout(PATIENCE_SECONDS):
        opened, *_ = await asyncio.gather(*calls, return_exceptions=True)
    if not isinstance(opened, BaseException):  # in time: before the kill was noticed
        await opened.close()
    await asyncio.wait_for(restarted.wait(), PATIENCE_SECONDS)
    assert left.p2pd_pid != pid
    assert await left.addresses() == addresses
    assert right.peer_id in await left.peers()
    assert await echoes(left, right, b"old friends")
    assert await echoes(right, left, b"old friends")
    await broken_stream.close()


async def test_handlers_added_while_p2pd_is_down_are_served_after(pair):
    left, right = pair
    os.kill(right.p2pd_pid, signal.SIGKILL)

    async def noticed() -> bool:
        return right.p2pd_pid is None

    await eventually(noticed)
    await right.handle("/prime-test/late", echo)

    async def answers() -> bool:
        try:
            stream = await left.open_stream(right.peer_id, "/prime-test/late")
        except TransportError:
            return False
        try:
            await stream.write(b"x")
            return await stream.read_exactly(1) == b"x"
        except TransportError:
            return False
        finally:
            await stream.close()

    await eventually(answers)


async def test_restarting_goes_on_until_it_succeeds_and_a_bad_hook_does_no_harm(
    pair, monkeypatch, caplog
):
    left, right = pair
    start_child, failures, called = P2pd.start, 2, asyncio.Event()

    async def start_at_last(*args, **options):
        nonlocal failures
        if failures:
            failures -= 1
            raise P2pdError(StartFault.OTHER, "not yet")
        return await start_child(*args, **options)

    async def bad_hook() -> None:
        called.set()
        raise KeyError("a bug")

    monkeypatch.setattr(P2pd, "start", start_at_last)
    right.on_restart(bad_hook)
    os.kill(right.p2pd_pid, signal.SIGKILL)
    await asyncio.wait_for(called.wait(), PATIENCE_SECONDS)
    assert failures == 0
    assert "not yet" in caplog.text
    await connects(left, right)
    assert await echoes(left, right, b"at last")


async def test_no_hivemind_view_while_p2pd_is_down(pair):
    left, right = pair
    os.kill(right.p2pd_pid, signal.SIGKILL)

    async def down() -> bool:
        try:
            return right.p2p is None
        except TransportError:
            return True

    async def up() -> bool:
        return not await down()

    await eventually(down)
    await eventually(up)
    await connects(left, right)


async def test_a_stream_that_comes_while_the_transport_closes_is_closed(keys):
    transport = await start(keys, 7)
    ours, theirs = socket.socketpair()
    transport._accept(*await asyncio.open_unix_connection(sock=ours))
    await transport.close()
    theirs.settimeout(5)
    assert await asyncio.to_thread(theirs.recv, 1) == b""
    theirs.close()


async def test_a_port_in_use_is_named(pair, keys):
    left, _ = pair
    port = int((await left.addresses())[0].split("/")[4])
    with pytest.raises(P2pdError, match=f"the listen port is in use: 127.0.0.1:{port}") as caught:
        await start(keys, 4, port=port)
    assert caught.value.fault is StartFault.PORT_IN_USE


async def test_a_child_that_starts_and_does_not_answer_is_named(keys, monkeypatch):
    script = keys / "deaf"
    script.write_text("#!/bin/sh\necho 'Peer ID: 12D3'; exec sleep 30\n")
    script.chmod(0o755)
    monkeypatch.setattr(p2pd, "binary_path", lambda: script)
    with pytest.raises(TransportError, match="does not answer"):
        await start(keys, 9)


async def test_a_wrong_key_file_and_a_free_port_to_announce_are_our_mistakes(keys):
    with pytest.raises(ValueError, match="fixed listen port"):
        await start(keys, 5, announce=("/ip4/192.0.2.1/tcp/4001",))
    with pytest.raises(ValueError, match="does not hold the key"):
        await HivemindTransport.create(Identity(b"6" * 32), keys / "5.key")


async def test_announced_addresses_are_what_others_are_told(keys):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    transport = await start(keys, 6, port=port, announce=("/ip4/192.0.2.1/tcp/4001",))
    assert await transport.addresses() == [f"/ip4/192.0.2.1/tcp/4001/p2p/{transport.peer_id}"]
    await transport.close()


OWNER = """
import asyncio, signal, sys
from pathlib import Path
from node.live.p2pd import P2pdOptions
from node.live.hivemind_p2p import HivemindTransport
from protocol.core.crypto import Identity
from protocol.core.types import PeerId

async def main():
    identity = Identity(bytes([7]) * 32)
    path = Path(sys.argv[1])
    path.write_bytes(identity.to_protobuf())
    transport = await HivemindTransport.create(identity, path)
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, lambda: print("interrupted", flush=True))
    print(transport.p2pd_pid, transport._sockets.path, flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


def exists(path: str) -> bool:
    return os.path.lexists(path)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.fixture
def owner(keys, interruptible):
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(keys / "7.key")],
        stdout=subprocess.PIPE,
        start_new_session=True,
        text=True,
    )
    yield process
    process.kill()
    process.communicate()


async def test_p2pd_survives_ctrl_c_and_dies_with_its_owner(keys, owner):
    pid_text, sockets = owner.stdout.readline().split()
    pid = int(pid_text)
    os.killpg(owner.pid, signal.SIGINT)
    assert owner.stdout.readline() == "interrupted\n"
    await asyncio.sleep(0.3)
    assert alive(pid)
    owner.kill()

    async def gone() -> bool:
        return not alive(pid)

    await eventually(gone)
    owner.wait(PATIENCE_SECONDS)  # the kernel may close its control connection before its lock
    assert exists(sockets)
    await (await start(keys, 8)).close()
    assert not exists(sockets)

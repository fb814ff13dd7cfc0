"""Nodes of a run on an internet of network namespaces, two of them behind home NATs."""

import asyncio
import subprocess
import sys

import pytest
import pytest_asyncio

from node.context import NodeContext, Ports
from node.live import p2pd
from node.live.hivemind_p2p import HivemindTransport
from node.live.p2pd import P2pdOptions, binary_path
from node.local.addresses import CIRCUIT, is_circuit
from node.local.system import SystemClock
from node.network.relay.relay import CircuitRelay
from node.network.relay.wire import HOP_SHAPE, CircuitMessage, CircuitMessageKind, ask
from node.network.resources.upload_scheduler import UploadScheduler
from node.network.streams.protocols import HOP
from protocol.core.rng import Rng
from protocol.replica.replica import Replica
from roles.runtime.context import ChangeSignal, Conditions
from tests.live.home_networks import Internet, why_not
from tests.live.test_founded_run import Node, founded
from tests.live.waiting import eventually
from tests.worlds.messages import World, identity, run_manifest
from tests.worlds.text import needs_jail

MISSING = why_not()
FAILED_SECONDS = 8.0
"""A hole punch takes 1 s, and its three tries less than this."""

ECHO = "/prime-test/echo"

pytestmark = [
    pytest.mark.live,
    pytest.mark.slow,
    pytest.mark.xdist_group("founded"),
    pytest.mark.usefixtures("shared_engines"),
    pytest.mark.skipif(MISSING is not None, reason=str(MISSING)),
]

PORT = "4001"
READ = "import sys, urllib.request as r; print(r.urlopen(sys.argv[1], timeout=10).read().decode())"


class RemoteNode(Node):
    def __init__(self, machine, directory, *arguments):
        self.machine = machine
        super().__init__(
            directory, *arguments, "--port", PORT, host=machine.address, before=machine.command
        )

    def read(self, url):
        command = [*self.machine.command, sys.executable, "-S", "-c", READ, url]
        try:
            return subprocess.run(command, capture_output=True, text=True, check=True).stdout
        except subprocess.CalledProcessError as error:
            raise OSError(error.stderr) from None


@pytest.fixture
def internet():
    made = Internet()
    yield made
    made.close()


def through_a_relay(status):
    return [address for address in status["addresses"] if CIRCUIT in address]


def bodies_bytes(status):
    traffic = status["traffic"]
    return traffic["blobs_received"] - traffic["weights_received"]


@needs_jail
def test_a_worker_behind_nat_is_certified_by_a_validator_behind_another(internet, tmp_path, nodes):
    """A committee is one validator: if it is the one at home, only it has the body."""
    run = founded(tmp_path, validators=2)
    joining = ["--new-swarm", "--run", str(run / "run.toml")]

    def node(machine, directory, role):
        nodes.append(RemoteNode(machine, directory, "--role", role, *joining))
        return nodes[-1]

    relay = node(internet.host(), run / "trainer-1", "trainer,relay")
    joining = ["--initial-peers", relay.until(lambda status: status["addresses"])[0]]
    node(internet.host(), run / "validator-1", "validator")
    judge = node(internet.home(), run / "validator-2", "validator")
    worker = node(internet.home(), tmp_path / "worker", "inference")
    judged_bytes = judge.until(bodies_bytes)
    worker.until(lambda status: status["yours"]["certified"] >= 2)
    assert worker.status()["yours"]["rejected"] == 0
    ways = through_a_relay(worker.status()) + through_a_relay(judge.status())
    assert len(ways) == 2
    assert all(way.startswith(f"/ip4/{relay.machine.address}/tcp/{PORT}/") for way in ways)
    carried = relay.status()["circuits"]
    assert carried["reservations"] == 2
    assert carried["carried_bytes"] > judged_bytes


class Peers:
    """The part of the connection manager that a relay uses."""

    def __init__(self, transport):
        self.handle = transport.handle


async def serve_circuits(transport, *members):
    """Serve as a relay for some members of a run."""
    now = SystemClock().now()
    genesis = run_manifest().genesis.model_copy(update={"created_at": round(now) - 60})
    world = World(run_manifest().model_copy(update={"genesis": genesis}))
    replica = Replica(world.manifest, lambda *_: True)
    for name in members:
        record = world.record(identity(name), ("relay",), sequence=round(now * 1000), joined_at=1)
        assert replica.roster.offer(record, now) is True
    ports = Ports(SystemClock(), Rng(b"1"), transport, *[None] * 5)
    context = NodeContext(None, replica, ports, Peers(transport), ChangeSignal(), Conditions())
    relay = CircuitRelay(context, UploadScheduler(None))
    await relay.start()
    return relay


async def echo(stream):
    while data := await stream.read(1 << 16):
        await stream.write(data)


@pytest_asyncio.fixture
async def started(internet, tmp_path, monkeypatch):
    transports, binary = [], binary_path()

    async def start(name, machine):
        monkeypatch.setattr(p2pd, "binary_path", lambda: machine.wrapped(binary, tmp_path))
        monkeypatch.setattr(p2pd, "_require_free_port", lambda _options: None)  # on another host
        path = tmp_path / f"{name}.key"
        path.write_bytes(identity(name).to_protobuf())
        hidden = machine.address != machine.public_address
        options = P2pdOptions(machine.address, int(PORT), hidden=hidden)
        transports.append(await HivemindTransport.create(identity(name), path, options))
        return transports[-1]

    yield start
    for transport in transports:
        await transport.close()


@pytest.mark.parametrize(("symmetric", "direct"), [(False, True), (True, False)])
async def test_a_circuit_becomes_a_direct_connection_where_the_nats_allow_it(
    started, internet, symmetric, direct
):
    """A home learns its outer address when four peers have reported the same one."""
    public = [await started(f"host {number}", internet.host()) for number in range(4)]
    homes = [await started(name, internet.home(symmetric=symmetric)) for name in ("one", "two")]
    addresses = [(await host.addresses())[0] for host in public]
    relay = await serve_circuits(public[0], "one", "two")
    one, two = homes
    for home in homes:
        for address in addresses:
            await home.connect(address)
        stream = await home.open_stream(public[0].peer_id, HOP.name)
        await ask(stream, CircuitMessage(CircuitMessageKind.RESERVE), HOP_SHAPE)
        await stream.close()
    await two.handle(ECHO, echo)
    await asyncio.sleep(2)
    await one.connect(f"{addresses[0]}{CIRCUIT}/p2p/{two.peer_id}")
    stream = await one.open_stream(two.peer_id, ECHO)
    await stream.write(b"hello")
    assert await stream.read_exactly(5) == b"hello"
    assert relay.circuits == 1

    async def punched():
        remote = await one.remote_addresses(two.peer_id)
        return not all(map(is_circuit, remote))

    if direct:
        await eventually(punched)
    else:
        await asyncio.sleep(FAILED_SECONDS)
        assert not await punched()
        assert relay.circuits == 1
    await stream.close()

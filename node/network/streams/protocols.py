"""Table of the stream protocols: names, first speaker, framing and limits.

A name contains the protocol version, so a stream to a node of another version fails as unsupported.
All names except libp2p's start alike; those bound to a run contain the first 16 hex digits of its
id. Except for gossip, a stream is one exchange: the opener requests, the acceptor responds.
"""

from dataclasses import dataclass
from enum import StrEnum

from protocol.consensus.council import CHAIN_BYTES_MAX
from protocol.core.types import DIGEST_BYTES, RunId, Topic
from protocol.gossipsub.params import Params
from protocol.gossipsub.rpc import RPC_BYTES_MAX
from protocol.ledger.receipts import WORK_BYTES_MAX
from protocol.messages import ENVELOPE_BYTES_MAX, PROTOCOL_VERSION
from protocol.run.manifest import MANIFEST_BYTES_MAX


class Side(StrEnum):
    """End of a stream."""

    OPENER = "opener"
    ACCEPTOR = "acceptor"


class Framing(StrEnum):
    """Length prefix of each message."""

    TWO_BYTES = "2 bytes, big-endian"
    FOUR_BYTES = "4 bytes, big-endian"
    VARINT = "varint"


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamProtocol:
    """One protocol; all numbers are guesses unless a source is named."""

    word: str
    name: str
    """On the wire; ``{run}`` is the run's prefix."""
    speaks_first: Side
    framing: Framing
    opener_bytes_max: int
    """Maximum size of one message of the opener; more is a fault."""
    acceptor_bytes_max: int
    """Maximum size of one message of the acceptor."""
    streams_per_peer: int
    """Concurrent streams; excess ones are closed, or refused in the protocol's own way."""
    streams_total: int
    streams_per_second: float | None
    """Sustained rate of the untrusted peers of one address block; None: their cost is bounded
    otherwise. Excess streams are treated as above."""
    streams_burst: int = 0
    """Burst of that rate."""
    stall_seconds: float
    """Deadline to read or write one message or piece; then the stream is closed."""
    exchange_seconds: float | None
    """Deadline of the whole stream; None: no limit."""

    def on(self, run_id: RunId) -> str:
        """Return the name for a run."""
        return self.name.format(run=run_id.hex()[:16])


_PREFIX = f"/prime-node/{PROTOCOL_VERSION}"

REQUEST_SECONDS = 2.0
"""Deadline of an opener's first message, because each open stream holds a slot. Independent of its
length: all except pages of ids fit into a few packets. A guess for a busy machine."""

IDS_MAX = 1024
"""Message ids per page of ``SYNC``, each requested at most once: 35 KB."""

_WORK_BYTES_MAX = ENVELOPE_BYTES_MAX + WORK_BYTES_MAX + 64
"""A page with its work; a part of a snapshot is smaller."""

_PAGE_BYTES_MAX = IDS_MAX * (DIGEST_BYTES + 2) + 1024

MANIFEST = StreamProtocol(
    word="manifest",
    name=f"{_PREFIX}/manifest",
    speaks_first=Side.ACCEPTOR,
    framing=Framing.FOUR_BYTES,
    opener_bytes_max=0,
    acceptor_bytes_max=MANIFEST_BYTES_MAX,
    streams_per_peer=1,
    streams_total=16,
    streams_per_second=0.5,
    streams_burst=8,
    stall_seconds=10.0,
    exchange_seconds=10.0,
)
"""The signed manifest of the acceptor's run, for a joining node; the largest is some hundred KB."""

MESSAGE = StreamProtocol(
    word="message",
    name=f"{_PREFIX}/{{run}}/message",
    speaks_first=Side.OPENER,
    framing=Framing.FOUR_BYTES,
    opener_bytes_max=ENVELOPE_BYTES_MAX,
    acceptor_bytes_max=1,
    streams_per_peer=16,
    streams_total=128,
    streams_per_second=16.0,
    streams_burst=128,
    stall_seconds=5.0,
    exchange_seconds=5.0,
)
"""One envelope for one peer; the response is one byte without a frame. At most 2 MB at a time."""

SYNC = StreamProtocol(
    word="sync",
    name=f"{_PREFIX}/{{run}}/sync",
    speaks_first=Side.OPENER,
    framing=Framing.FOUR_BYTES,
    opener_bytes_max=_PAGE_BYTES_MAX,
    acceptor_bytes_max=_PAGE_BYTES_MAX,
    streams_per_peer=1,
    streams_total=16,
    streams_per_second=2.0,
    streams_burst=64,
    stall_seconds=5.0,
    exchange_seconds=30.0,
)
"""Anti-entropy: a response may have megabytes, its request 40 bytes."""

PAGES = StreamProtocol(
    word="pages",
    name=f"{_PREFIX}/{{run}}/pages",
    speaks_first=Side.OPENER,
    framing=Framing.FOUR_BYTES,
    opener_bytes_max=_PAGE_BYTES_MAX,
    acceptor_bytes_max=CHAIN_BYTES_MAX,
    streams_per_peer=1,
    streams_total=16,
    streams_per_second=2.0,
    streams_burst=64,
    stall_seconds=10.0,
    exchange_seconds=60.0,
)
"""Notarised pages that the opener lacks, before it synchronises messages. Three pages of a council
of 100 take 20 KB; a node that joins needs three for each change of the council."""

LEDGER = StreamProtocol(
    word="ledger",
    name=f"{_PREFIX}/{{run}}/ledger",
    speaks_first=Side.OPENER,
    framing=Framing.FOUR_BYTES,
    opener_bytes_max=96,
    acceptor_bytes_max=_WORK_BYTES_MAX,
    streams_per_peer=1,
    streams_total=16,
    streams_per_second=2.0,
    streams_burst=64,
    stall_seconds=10.0,
    exchange_seconds=60.0,
)
"""Final pages with their work, back from one that the opener names, or a snapshot of all accounts:
1 KB for five of them."""

BLOBS = StreamProtocol(
    word="blobs",
    name=f"{_PREFIX}/{{run}}/blobs",
    speaks_first=Side.OPENER,
    framing=Framing.TWO_BYTES,
    opener_bytes_max=256,
    acceptor_bytes_max=256,
    streams_per_peer=16,
    streams_total=256,
    streams_per_second=None,
    stall_seconds=60.0,
    exchange_seconds=None,
)
"""A range of a blob: a request of 80 bytes, a header of 30, then the raw bytes. A download keeps
eight streams in flight with one peer."""

SAMPLE_BYTES_MAX = 2 << 20
"""Size of a bandwidth sample: 1/60 s at 1 Gbit/s, 3 s on a slow uplink."""

DIAL_BACK = StreamProtocol(
    word="dial-back",
    name=f"{_PREFIX}/{{run}}/dial-back",
    speaks_first=Side.OPENER,
    framing=Framing.TWO_BYTES,
    opener_bytes_max=2048,
    acceptor_bytes_max=1,
    streams_per_peer=1,
    streams_total=4,
    streams_per_second=0.2,
    streams_burst=8,
    stall_seconds=10.0,
    exchange_seconds=20.0,
)
"""Test of a member's own address and upload rate. An untrusted peer can trigger four dials in a few
seconds, only to its own host."""

HOP = StreamProtocol(
    word="hop",
    name="/libp2p/circuit/relay/0.2.0/hop",
    speaks_first=Side.OPENER,
    framing=Framing.VARINT,
    opener_bytes_max=4096,
    acceptor_bytes_max=4096,
    streams_per_peer=16,
    streams_total=128,
    streams_per_second=None,
    stall_seconds=10.0,
    exchange_seconds=600.0,
)
"""A reservation at a relay, or a circuit through it (``node.network.relay``). Name, messages,
message limit and circuits per peer are libp2p's. Served by relays only; the stream of a circuit
carries the circuit itself."""

STOP_NAME = "/libp2p/circuit/relay/0.2.0/stop"
"""Protocol that a relay opens to the node behind it; served by ``p2pd``."""

GOSSIP = StreamProtocol(
    word="gossip",
    name="/meshsub/1.1.0",
    speaks_first=Side.OPENER,
    framing=Framing.VARINT,
    opener_bytes_max=RPC_BYTES_MAX,
    acceptor_bytes_max=0,
    streams_per_peer=1,
    streams_total=Params().peers_max,
    streams_per_second=None,
    stall_seconds=20.0,
    exchange_seconds=None,
)
"""Each side of a pair writes on the stream that it opened. Name and message limit are libp2p's; a
newer stream of a peer replaces its older one."""

STREAM_PROTOCOLS = (MANIFEST, MESSAGE, SYNC, PAGES, LEDGER, BLOBS, DIAL_BACK, HOP, GOSSIP)


def topic_name(topic: Topic, run_id: RunId) -> str:
    """Return the name of a gossip topic on the wire."""
    return f"prime-node/{PROTOCOL_VERSION}/{run_id.hex()}/{topic}"

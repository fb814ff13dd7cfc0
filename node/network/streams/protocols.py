"""The stream protocols of a node: one table of their names, who speaks, and their limits.

A name carries the version of the protocol. A node of another version serves other names, so a
stream to it fails as unsupported and nothing of it is misread. All but those of libp2p begin alike;
those that are about one run carry the first sixteen digits of its id.

All but gossip are one exchange per stream: the opener asks, the acceptor answers and closes.
"""

from dataclasses import dataclass
from enum import StrEnum

from protocol.core.types import DIGEST_BYTES, RunId, Topic
from protocol.gossipsub.params import Params
from protocol.gossipsub.rpc import RPC_BYTES_MAX
from protocol.messages import ENVELOPE_BYTES_MAX, PROTOCOL_VERSION
from protocol.run.manifest import MANIFEST_BYTES_MAX


class Side(StrEnum):
    """Which end of a stream."""

    OPENER = "opener"
    ACCEPTOR = "acceptor"


class Framing(StrEnum):
    """What comes before each message: its length in bytes, big-endian or as a varint."""

    TWO_BYTES = "2 bytes, big-endian"
    FOUR_BYTES = "4 bytes, big-endian"
    VARINT = "varint"


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamProtocol:
    """One protocol; all numbers are guesses unless a source is named."""

    word: str
    name: str
    """On the wire; ``{run}`` stands for the run."""
    speaks_first: Side
    framing: Framing
    opener_bytes_max: int
    """One message of the opener; more is a fault."""
    acceptor_bytes_max: int
    """One message of the acceptor."""
    streams_per_peer: int
    """Served at once; what is over it is closed, or refused in the protocol's own words."""
    streams_total: int
    streams_per_second: float | None
    """Of the peers at one address without standing, in the long run; None: what they cost is
    bounded otherwise. Beyond it, as over ``streams_per_peer``."""
    streams_burst: int = 0
    """Of them at once."""
    stall_seconds: float
    """One message or piece, to be read or written; then the stream is given up."""
    exchange_seconds: float | None
    """The whole stream; None: it has no bound of its own."""

    def on(self, run_id: RunId) -> str:
        """Return the name for a run."""
        return self.name.format(run=run_id.hex()[:16])


_PREFIX = f"/prime-node/{PROTOCOL_VERSION}"

REQUEST_SECONDS = 2.0
"""For the first message of an opener, whatever its length: all but pages of ids fit into a few
packets, and who holds a place has to say why. A guess, above what a busy machine needs."""

IDS_MAX = 1024
"""Message ids on one page of ``SYNC``, each asked for at most once: 35 KB."""

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
"""The signed manifest of the acceptor's run, for a newcomer: the largest is some hundred KB."""

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
"""One envelope for one peer; the answer is one byte without a frame. 2 MB are received at once."""

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
"""Anti-entropy: an answer may take megabytes, its question takes 40 bytes."""

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
"""A range of a blob: a request of 80 bytes, a header of 30, then the bytes as they are. A download
keeps eight streams in flight with one peer."""

SAMPLE_BYTES_MAX = 2 << 20
"""What a member sends to be measured: a sixtieth of a second of a gigabit, three of a thin line."""

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
"""Whether a member answers at its own address, and how fast it sends; what a stranger can make us
do with it is four dials in a few seconds, to the host that it comes from itself."""

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
"""A reservation at a relay, or a circuit through it (``node.network.relay``): name, messages and
the limit of one are libp2p's, as is how many circuits one peer may have. It is served by relays
only; the stream of a circuit is the circuit, for as long as it lasts."""

STOP_NAME = "/libp2p/circuit/relay/0.2.0/stop"
"""What a relay opens to the node behind it; served by ``p2pd`` itself."""

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
"""Each side of a pair writes on the stream that it opened. The name and the limit of a message are
libp2p's; a newer stream of a peer replaces its older one."""

STREAM_PROTOCOLS = (MANIFEST, MESSAGE, SYNC, BLOBS, DIAL_BACK, HOP, GOSSIP)


def topic_name(topic: Topic, run_id: RunId) -> str:
    """Return the name of a gossip topic on the wire."""
    return f"prime-node/{PROTOCOL_VERSION}/{run_id.hex()}/{topic}"

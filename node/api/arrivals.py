"""What a status says of weights on their way: what is here of them, and who gives and takes."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PeerTrafficStatus:
    """Bytes that came from a peer or went to one; ``name`` is its peer id.

    Who fetches from us by HTTP may be nobody of the swarm, and is known by address.
    """

    name: str
    http_bytes: int
    stream_bytes: int
    bytes_per_second: int


@dataclass(frozen=True, slots=True)
class StripeStatus:
    """The part of a file that comes by one tree; ``parent`` feeds us there, empty before one does.

    A short file has no pieces in some stripes, which are left out.

    ``map`` is hexadecimal, one bit for each piece in their order, set where it is here; the first
    piece is the most significant bit of the first digit. A piece is a chunk.
    """

    number: int
    parent: str
    pieces: int
    pieces_here: int
    map: str


@dataclass(frozen=True, slots=True)
class DownloadStatus:
    """A version on its way here, or one of the last that came: then ``arrived_at`` says when.

    Also a file of the run, whose ``version`` is -1. ``total_bytes`` is 0 until its index is here.
    """

    name: str
    version: int
    form: str
    """How it travels: ``file``, ``planes`` or ``patch``."""
    bytes_here: int
    total_bytes: int
    spared_bytes: int
    """How much longer the file is than what travels."""
    seconds: float
    """Since it was asked for, or how long it took."""
    bytes_per_second: int
    seconds_to_go: float | None
    """None while nothing comes."""
    arrived_at: float | None
    """Unix time; None while it is on its way."""
    root: str
    """Who feeds the forest: the publisher, or who holds the version when that one is gone."""
    root_bytes: int
    """Received from the root."""
    http_bytes: int
    stream_bytes: int
    """Received by each way, also what was not good or came twice."""
    stripes: tuple[StripeStatus, ...]
    """Empty before the index is here, and for what has arrived."""
    sources: tuple[PeerTrafficStatus, ...]
    """Those who sent last, the one that sends most first; who is no stripe's parent helps out."""

    @property
    def pieces(self) -> int:
        """Of all stripes."""
        return sum(stripe.pieces for stripe in self.stripes)

    @property
    def pieces_here(self) -> int:
        """Of all stripes."""
        return sum(stripe.pieces_here for stripe in self.stripes)


@dataclass(frozen=True, slots=True)
class HistogramStatus:
    """How long something took: ``seconds`` in all.

    ``counts`` are those of up to each bound, and above the one before; the longer ones come last.
    The bounds are those of what is measured: ``SECONDS_BOUNDS`` of
    ``node.weights.download_progress`` for arrivals, ``roles.runtime.metrics`` for rollouts. None:
    there was nothing yet.
    """

    counts: tuple[int, ...] = ()
    seconds: float = 0.0

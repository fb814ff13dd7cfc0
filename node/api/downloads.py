"""Status of weight downloads and uploads: progress, sources and receivers."""

from dataclasses import dataclass

from roles.runtime.metrics import Histogram


@dataclass(frozen=True, slots=True)
class PeerTrafficStatus:
    """Traffic with one peer; ``name`` is its peer id, or the address of an HTTP client."""

    name: str
    http_bytes: int
    stream_bytes: int
    bytes_per_second: int


@dataclass(frozen=True, slots=True)
class StripeStatus:
    """The part of a file that one tree carries; ``parent`` is our parent in it, empty at first.

    Stripes without pieces, as in a short file, are left out. ``map`` is hexadecimal with one bit
    per piece (chunk) in order, set if present; the first piece is the most significant bit.
    """

    number: int
    parent: str
    pieces: int
    pieces_here: int
    map: str


@dataclass(frozen=True, slots=True)
class DownloadStatus:
    """A version download in progress, or a recent complete one with ``arrived_at`` set.

    A file of the run has ``version`` -1. ``total_bytes`` is 0 until the index is received.
    """

    name: str
    version: int
    form: str
    """Encoding: ``file``, ``planes`` or ``patch``."""
    bytes_here: int
    total_bytes: int
    saved_bytes: int
    """Bytes saved: size of the file minus size of the encoding."""
    seconds: float
    """Duration since the request; of a complete download its total duration."""
    bytes_per_second: int
    seconds_to_go: float | None
    """None while no bytes arrive."""
    arrived_at: float | None
    """Unix time; None while in progress."""
    root: str
    """Root of the forest: the publisher, or another holder of the version if it is gone."""
    root_bytes: int
    """Received from the root."""
    http_bytes: int
    stream_bytes: int
    """Bytes received over each transport, including corrupt and duplicate ones."""
    stripes: tuple[StripeStatus, ...]
    """Empty before the index is received, and for complete downloads."""
    sources: tuple[PeerTrafficStatus, ...]
    """Recent sources, highest rate first; a source that is no parent is an additional one."""

    @property
    def pieces(self) -> int:
        """Number of pieces in all stripes."""
        return sum(stripe.pieces for stripe in self.stripes)

    @property
    def pieces_here(self) -> int:
        """Number of present pieces in all stripes."""
        return sum(stripe.pieces_here for stripe in self.stripes)


@dataclass(frozen=True, slots=True)
class HistogramStatus:
    """Histogram of durations, with their sum in ``seconds``; empty before the first one.

    ``counts`` has one entry per bucket, the last one above all bounds. The bounds are
    ``SECONDS_BOUNDS`` of ``node.weights.download_progress`` for downloads and those of
    ``roles.runtime.metrics`` for rollouts.
    """

    counts: tuple[int, ...] = ()
    seconds: float = 0.0

    @classmethod
    def of(cls, durations: Histogram) -> "HistogramStatus":
        """Return the status of a histogram."""
        return cls(tuple(durations.counts), durations.seconds)

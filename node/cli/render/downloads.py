"""Terminal view of weight downloads: piece map, rate and sources."""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from node.api.downloads import DownloadStatus, PeerTrafficStatus
from node.cli.render.piece_map import PieceBar, piece_shares
from node.cli.render.style import DIM, GOOD, WARN, plain, short_peer
from node.local.units import bytes_text, duration_text

PARTIES_SHOWN = 4


def downloads_view(arrivals: Sequence[DownloadStatus]) -> RenderableType | None:
    """Return a line with the piece map and a line with the sources of each download."""
    coming = [_arrival(one) for one in arrivals if one.arrived_at is None]
    return Group(*coming) if coming else None


def sending_text(receivers: Sequence[PeerTrafficStatus]) -> str:
    """Return the current upload rate and the receivers."""
    rate = sum(party.bytes_per_second for party in receivers)
    count = f"{len(receivers)} peer{'s' * (len(receivers) != 1)}"
    return f"{bytes_text(rate)}/s to {count}: {_parties(receivers, {})}"


def share_text(arrival: DownloadStatus) -> str:
    """Return the downloaded percentage, rounded down: 100 % only when complete."""
    return f"{100 * arrival.bytes_here // max(1, arrival.total_bytes)} %"


def remaining_text(arrival: DownloadStatus) -> str:
    """Return the remaining time, or the reason that it is unknown."""
    if not arrival.stripes:
        return "no index yet"
    if arrival.bytes_here == arrival.total_bytes:
        return "complete"
    if arrival.seconds_to_go is None:
        return "stalled"
    return f"{duration_text(arrival.seconds_to_go)} left"


def _arrival(arrival: DownloadStatus) -> RenderableType:
    line = Table.grid(expand=True, padding=(0, 2, 0, 0))
    line.add_column(no_wrap=True)
    line.add_column(ratio=1)
    for _ in range(3):
        line.add_column(justify="right", no_wrap=True)
    line.add_row(
        Text(plain(arrival.name)),
        PieceBar([piece_shares(stripe) for stripe in arrival.stripes], GOOD),
        share_text(arrival),
        f"{bytes_text(arrival.bytes_per_second)}/s",
        Text(remaining_text(arrival), WARN if arrival.seconds_to_go is None else ""),
    )
    return Group(line, Padding(Text(_origin(arrival), style=DIM), (0, 0, 0, 2)))


def _origin(arrival: DownloadStatus) -> str:
    saved = f", saves {bytes_text(arrival.saved_bytes)}" if arrival.saved_bytes > 0 else ""
    size = f"{bytes_text(arrival.bytes_here)} of {bytes_text(arrival.total_bytes)}"
    stripes: dict[str, list[int]] = {}
    for stripe in arrival.stripes:
        stripes.setdefault(stripe.parent, []).append(stripe.number)
    sources = f" from {_parties(arrival.sources, stripes)}" if arrival.sources else ""
    return f"{arrival.form}{saved}: {size}{sources}"


def _parties(parties: Sequence[PeerTrafficStatus], stripes: dict[str, list[int]]) -> str:
    shown = [_party(party, stripes.get(party.name, [])) for party in parties[:PARTIES_SHOWN]]
    hidden = len(parties) - len(shown)
    return ", ".join(shown) + (f" and {hidden} more" if hidden > 0 else "")


def _party(party: PeerTrafficStatus, stripes: Sequence[int]) -> str:
    fed = f", stripe{'s' * (len(stripes) > 1)} {' '.join(map(str, stripes))}" if stripes else ""
    moved = f"{bytes_text(party.http_bytes + party.stream_bytes)} by {_way(party)}"
    return f"{short_peer(party.name)} {bytes_text(party.bytes_per_second)}/s ({moved}{fed})"


def _way(party: PeerTrafficStatus) -> str:
    if not party.http_bytes:
        return "stream"
    return "HTTP and stream" if party.stream_bytes else "HTTP"

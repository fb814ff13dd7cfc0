"""Identity and uptime of all nodes, read from the trace."""

from dataclasses import dataclass

from simulations.runtime.trace import Event


@dataclass(slots=True, eq=False)
class TracedNode:
    """One simulated node over all its sessions."""

    name: str
    number: int
    role: str
    peer: str
    behaviour: str = ""
    upload: float = 0.0
    """Bytes per second; 0 if the network does not limit it."""
    download: float = 0.0
    validates: bool = False
    """True if it takes the role validator, alone or beside its own."""
    up_since: float | None = None
    state_lost_at: float = float("-inf")
    """Time of its last start without its stored state."""

    @property
    def honest(self) -> bool:
        """True if it runs the unmodified daemon."""
        return not self.behaviour

    def steady_since(self, at: float, now: float) -> bool:
        """Return whether it ran without a break from ``at`` to ``now``."""
        return self.up_since is not None and self.up_since <= at <= now


class Swarm:
    """Every node that ever came up, by name and by peer id."""

    def __init__(self) -> None:
        self.members: dict[str, TracedNode] = {}
        self.by_peer: dict[str, TracedNode] = {}
        self.last_fault_at: float | None = None
        self.calm_since: float | None = None

    def see(self, event: Event) -> None:
        """Record one event of the world."""
        match event.kind:
            case "node-up":
                self._up(event)
            case "node-down":
                self._down(event)
            case "line":
                self._take_line(event)
            case "fault":
                self.last_fault_at = event.at
            case "calm":
                self.calm_since = event.at

    def live(self) -> list[TracedNode]:
        """Return the running nodes in order of their first start."""
        return [member for member in self.members.values() if member.up_since is not None]

    def honest(self, peer: str) -> bool:
        """Return whether ``peer`` runs the unmodified daemon; False for peers outside the swarm."""
        member = self.by_peer.get(peer)
        return member is not None and member.honest

    def name(self, peer: str) -> str:
        """Return the short name of a peer."""
        member = self.by_peer.get(peer)
        return peer[-8:] if member is None else member.name

    def _up(self, event: Event) -> None:
        facts = event.facts
        member = self.members.get(event.node)
        if member is None:
            role, peer = str(facts.get("role", "")), str(facts.get("peer", ""))
            member = TracedNode(event.node, len(self.members), role, peer)
            self.members[event.node] = self.by_peer[peer] = member
        member.behaviour = str(facts.get("behaviour") or "")
        member.validates = bool(facts.get("validates"))
        self._take_line(event)
        member.up_since = event.at

    def _take_line(self, event: Event) -> None:
        member = self.members[event.node]
        member.upload = float(event.facts.get("upload") or 0.0)
        member.download = float(event.facts.get("download") or 0.0)

    def _down(self, event: Event) -> None:
        member = self.members.get(event.node)
        if member is None or member.up_since is None:
            return
        member.up_since = None
        if event.facts.get("how") == "lost":
            member.state_lost_at = event.at

"""Backoff rule: a router does not graft a peer that pruned it before the backoff ends."""

from simulations.checkers.watch import Watch
from simulations.checkers.wire import shown
from simulations.runtime.trace import Event

CROSSING_SECONDS = 5.0
"""A GRAFT queued before the PRUNE was read is no violation."""

PRUNES_KEPT = 4
"""The oldest of several counts: a GRAFT may provoke a newer PRUNE at once."""

_Key = tuple[str, str, str]


class Backoff:
    """Follows GRAFT and PRUNE on the wire, at the writer and at the reader."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._barred: dict[_Key, list[tuple[float, float]]] = {}
        """(node, peer, topic) to (time the PRUNE was read, end of the backoff) pairs."""
        watch.on("prune", self._on_prune)
        watch.on("prune-in", self._on_prune_in)
        watch.on("graft", self._on_graft)
        watch.on("node-down", self._on_down)

    def _on_prune(self, event: Event) -> None:
        backoff = event.facts.get("backoff")
        if not isinstance(backoff, int | float) or backoff <= 0:
            return
        barred = self._barred.setdefault(_key(event), [])
        barred[:] = [entry for entry in barred if entry[1] > event.at][: PRUNES_KEPT - 1]
        barred.append((event.at, event.at + backoff))

    def _on_prune_in(self, event: Event) -> None:
        """Bind a node to the backoffs of honest peers; it may ignore those of misbehaving ones."""
        member = self._watch.swarm.members.get(shown(event.facts["peer"]))
        if member is not None and member.honest:
            self._on_prune(event)

    def _on_graft(self, event: Event) -> None:
        member = self._watch.swarm.members.get(event.node)
        if member is None or not member.honest:
            return
        for told_at, until in self._barred.get(_key(event), ()):
            if told_at + CROSSING_SECONDS < event.at < until:
                peer = shown(event.facts["peer"])
                what = (
                    f"grafts {peer} {event.at - told_at:.1f} s after a PRUNE between them "
                    f"that asked for {until - told_at:.0f} s"
                )
                self._watch.report("back-off", event.node, what)
                return

    def _on_down(self, event: Event) -> None:
        """Forget the backoffs of a node that ends; its peers keep theirs."""
        self._barred = {key: barred for key, barred in self._barred.items() if key[0] != event.node}


def _key(event: Event) -> _Key:
    return event.node, shown(event.facts["peer"]), shown(event.facts["topic"])

"""Trace listener behind every checker: decodes each event once and dispatches it.

A listener runs inside the code that emitted the event, so nothing here raises. The first violation
is kept and passed to ``on_violation``; later events are ignored.
"""

from collections.abc import Callable

from simulations.checkers.history import History, Subject, Violation
from simulations.checkers.swarm import Swarm, TracedNode
from simulations.checkers.wire import Opened, Rules, Wire
from simulations.runtime.trace import Event

EventHandler = Callable[[Event], None]
MessageHandler = Callable[[Event, TracedNode, Opened], None]
TickHandler = Callable[[float], None]
ForgetHandler = Callable[[float], None]
"""Receives the time before which everything can be forgotten."""

_WORLD_KINDS = ("node-up", "node-down", "line", "fault", "calm")
_FORGET_EXPIRIES = 8
"""A ledger forgets a commit four expiry times after its creation, and no node sends one later."""


class Watch:
    """State shared by checkers and numbers: rules, members, opened messages, handlers."""

    def __init__(self, on_violation: Callable[[Violation], None] = lambda _violation: None) -> None:
        self.swarm = Swarm()
        self.history = History(self.swarm.name)
        self.violation: Violation | None = None
        self.started_at = 0.0
        self.now = 0.0
        self._on_violation = on_violation
        self.rules: Rules
        """Rules of the run; set, with ``wire``, by the trace's first event."""
        self.wire: Wire
        self.real_signatures = False
        """True for Ed25519, and for ECVRF reveals."""
        self._next_tick_at = float("inf")
        self._events: dict[str, list[EventHandler]] = {}
        self._messages: dict[str, list[MessageHandler]] = {}
        self._ticks: list[TickHandler] = []
        self._forgets: list[ForgetHandler] = []
        self._next_forget_at = float("inf")

    # Subscriptions

    def on(self, kind: str, handler: EventHandler) -> None:
        """Call ``handler`` with every event of ``kind``."""
        self._events.setdefault(kind, []).append(handler)

    def on_message(self, kind: str, handler: MessageHandler) -> None:
        """Call ``handler`` with every message of ``kind`` that a node stores."""
        self._messages.setdefault(kind, []).append(handler)

    def on_tick(self, handler: TickHandler) -> None:
        """Call ``handler`` about once per epoch, between events."""
        self._ticks.append(handler)

    def on_forget(self, handler: ForgetHandler) -> None:
        """Call ``handler`` now and then with the time before which nothing can recur."""
        self._forgets.append(handler)

    # Events

    def see(self, event: Event) -> None:
        """Process one event of the trace."""
        if self.violation is not None:
            return
        self.now = event.at
        kind = event.kind
        if kind == "run":
            self._begin(event)
        elif kind in _WORLD_KINDS:
            self.swarm.see(event)
            self.history.note_world(event)
        elif kind == "stored" and event.facts["table"] == "messages":
            self._stored(event)
        for handler in self._events.get(kind, ()):
            handler(event)
        if event.at >= self._next_tick_at:
            self._tick(event.at)

    def report(self, rule: str, node: str, what: str, subjects: tuple[Subject, ...] = ()) -> None:
        """Report that ``rule`` is violated; the first report ends the watch."""
        if self.violation is None:
            causes = self.history.causes(subjects, self.started_at)
            self.violation = Violation(rule, self.now - self.started_at, node, what, causes)
            self._on_violation(self.violation)

    def note_failure(self, what: str) -> None:
        """Record that a daemon failed with an error of its own, which ended the simulation."""
        if self.violation is None:
            causes = self.history.causes((), self.started_at)
            node, _, error = what.partition(": ")
            at = self.now - self.started_at
            self.violation = Violation("no-node-fails", at, node, error or what, causes)

    def finish(self, now: float) -> None:
        """Run the final checks at the end of the run."""
        self.now = max(self.now, now)
        if self.violation is None and self._next_tick_at < float("inf"):
            self._tick(self.now)

    def _begin(self, event: Event) -> None:
        manifest = event.facts["manifest"]
        if not isinstance(manifest, bytes):
            raise TypeError("the manifest of a run is bytes")
        self.started_at = event.at
        self.rules = Rules.read(manifest)
        self.real_signatures = event.facts.get("signatures") == "ed25519"
        self.wire = Wire(self.rules, check_signatures=self.real_signatures)
        self.on_forget(self.wire.forget)
        self._next_tick_at = self._next_forget_at = event.at + self.rules.epoch_seconds

    def _stored(self, event: Event) -> None:
        envelope, member = event.facts["value"], self.swarm.members.get(event.node)
        if not isinstance(envelope, bytes) or member is None:
            return
        opened = self.wire.open(envelope, event.at)
        if opened is None:
            self.report("readable", event.node, "stored an undecodable message")
            return
        opened.stores += 1
        self.history.note_message(event, opened)
        for handler in (*self._messages.get("*", ()), *self._messages.get(opened.kind, ())):
            handler(event, member, opened)
        if opened.signer == member.peer:
            opened.stored_by_author = True

    def _tick(self, now: float) -> None:
        self._next_tick_at = now + self.rules.epoch_seconds
        for handler in self._ticks:
            handler(now)
        if now >= self._next_forget_at:
            expiry_seconds = self.rules.expire_epochs * self.rules.epoch_seconds
            self._next_forget_at = now + expiry_seconds
            for handler in self._forgets:
                handler(now - _FORGET_EXPIRIES * expiry_seconds)

"""What a node announces it has stored before, so that no crash makes it contradict itself."""

from simulations.checkers.swarm import TracedNode
from simulations.checkers.watch import Watch
from simulations.checkers.wire import Opened
from simulations.runtime.trace import Event


class Durability:
    """No message of an honest node is at another one before its author has stored it."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        watch.on_message("*", self._on_message)

    def _on_message(self, event: Event, member: TracedNode, message: Opened) -> None:
        if message.signer == member.peer or message.stored_by_author or not message.well_signed:
            return
        if not self._watch.swarm.honest(message.signer):
            return
        author = self._watch.swarm.name(message.signer)
        what = f"holds a {message.kind} that {author} announced and has not stored"
        subject = message.commit
        self._watch.report("stored-first", event.node, what, () if subject is None else (subject,))

"""Durability rule: a node stores a message before it sends it, so no crash makes it equivocate."""

from simulations.checkers.swarm import TracedNode
from simulations.checkers.watch import Watch
from simulations.checkers.wire import Opened
from simulations.runtime.trace import Event


class Durability:
    """No node stores a message of an honest author before that author has stored it."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        watch.on_message("*", self._on_message)

    def _on_message(self, event: Event, member: TracedNode, message: Opened) -> None:
        if message.signer == member.peer or message.stored_by_author or not message.well_signed:
            return
        if not self._watch.swarm.honest(message.signer):
            return
        author = self._watch.swarm.name(message.signer)
        what = f"holds a {message.kind} that {author} sent before storing it"
        subject = message.commit
        self._watch.report("stored-first", event.node, what, () if subject is None else (subject,))

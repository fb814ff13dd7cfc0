"""Exclusion rule: the council removes a member that signed both verdicts on a commit."""

from simulations.checkers.pages import Pages, TracedPage
from simulations.checkers.swarm import TracedNode
from simulations.checkers.watch import Watch
from simulations.checkers.wire import Opened
from simulations.runtime.trace import Event

CLOSING_EPOCHS = 6
"""Epochs from the page that removes a member to the next council's first page: three pages in a
row, and as many for a proposer that is absent. A guess."""


class Excluded:
    """Reads evidence from the messages that honest nodes store.

    A council may draw committees with an accused member for ``epochs`` after the evidence became
    known, or after the last fault: by then every member has the evidence. It takes
    ``CLOSING_EPOCHS`` more until the removal is final. The rule holds while members with more than
    two thirds of the seats are honest: fewer cannot remove anybody.
    """

    def __init__(self, watch: Watch, pages: Pages, epochs: int) -> None:
        self._watch = watch
        self._epochs = epochs + CLOSING_EPOCHS
        self._known_at: dict[str, float] = {}
        """Member to the time of the first valid evidence against it."""
        watch.on_message("evidence", self._on_evidence)
        pages.on_notarised(self._on_page)

    def _on_evidence(self, event: Event, member: TracedNode, evidence: Opened) -> None:
        wire, fields = self._watch.wire, evidence.fields
        opened = [wire.open(fields[key], event.at) for key in ("commit", "accepting", "rejecting")]
        if not member.honest:
            return
        commit, accepting, rejecting = opened
        if commit is None or accepting is None or rejecting is None:
            self._watch.report("excluded", event.node, "accepted undecodable evidence")
            return
        contradict = accepting.fields["accept"] and not rejecting.fields["accept"]
        about = accepting.fields["commit"] == rejecting.fields["commit"] == commit.digest
        signer = accepting.signer
        if not (contradict and about and signer == rejecting.signer):
            what = f"accepted invalid evidence against {self._watch.swarm.name(signer)}"
            self._watch.report("excluded", event.node, what, (commit.digest,))
            return
        self._known_at.setdefault(signer, event.at)

    def _on_page(self, page: TracedPage) -> None:
        accused = self._known_at.keys() & set(page.members)
        calm_since = self._watch.swarm.calm_since
        if not page.draws or not accused or calm_since is None:
            return
        honest = filter(self._watch.swarm.honest, page.members)
        if 3 * sum(map(page.members.__getitem__, honest)) <= 2 * sum(page.members.values()):
            return
        for peer in sorted(accused):
            known_epoch = self._watch.rules.epoch_at(max(self._known_at[peer], calm_since))
            if page.epoch > known_epoch + self._epochs:
                what = (
                    f"{self._watch.swarm.name(peer)} has a seat in epoch {page.epoch}; evidence "
                    f"against it is known since epoch {known_epoch}"
                )
                self._watch.report("excluded", "world", what)
                return

"""Exclusion rule: the council removes a member that signed contradicting verdicts or seals."""

import msgpack

from simulations.checkers.pages import Pages, TracedPage
from simulations.checkers.swarm import TracedNode
from simulations.checkers.watch import Watch
from simulations.checkers.wire import Opened, blake3_digest
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
        opened = [wire.open(fields[key], event.at) for key in ("commit", "first", "second")]
        if not member.honest:
            return
        commit, first, second = opened
        if commit is None or first is None or second is None:
            self._watch.report("excluded", event.node, "accepted undecodable evidence")
            return
        about = first.fields["commit"] == second.fields["commit"] == commit.digest
        same_page = first.fields["page"] == second.fields["page"]
        signer = first.signer
        if not (about and same_page and signer == second.signer and _contradict(first, second)):
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


def _contradict(one: Opened, other: Opened) -> bool:
    if one.kind == other.kind == "verdict":
        return one.fields["accept"] is not other.fields["accept"]
    return seal_of(one) != seal_of(other)


def seal_of(statement: Opened) -> bytes:
    """Return a seal, or the one that a verdict has: a hash of signer, nonce and other fields."""
    if statement.kind != "verdict":
        seal: bytes = statement.fields["seal"]
        return seal
    content = {key: statement.fields[key] for key in sorted(statement.fields) if key != "nonce"}
    packed: bytes = msgpack.packb(content)
    signer = statement.signer.encode()
    domain = b"prime-node/verdict-seal"
    return blake3_digest(domain + signer + statement.fields["nonce"] + packed)

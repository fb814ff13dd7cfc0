"""Final version rule: nodes follow the leader and the version that the council's final pages name.

A sample of a node states the epoch of its newest final page. A node writes what it accepts up to an
epoch later, so a version that it stores was accepted under the final page of that time or a later
one.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from simulations.checkers.pages import Pages, TracedLead, TracedPage
from simulations.checkers.swarm import TracedNode
from simulations.checkers.watch import Watch
from simulations.checkers.wire import Opened, short
from simulations.runtime.trace import Event

WRITE_EPOCHS = 1
"""Epochs within which a node writes what it has accepted; a quarter in the message log."""


@dataclass(frozen=True, slots=True)
class _Pending:
    """A check of a node that waits until the node has written what it has accepted."""

    due_at: float
    member: TracedNode
    flaw: Callable[[], str]


class FinalVersions:
    """``final-versions``: one growing chain of final versions, which every honest node follows.

    - The final version of a final page is that of the one before, or descends from it.
    - An honest member votes only for a final version that it has accepted.
    - A node takes no version that conflicts with a final version that it knows.
    - A version that is not final is of a term that a final page names. The first one of a term
      follows the final version of such a page.
    - A node knows no final page that the votes do not make final.
    """

    def __init__(self, watch: Watch, pages: Pages) -> None:
        self._watch = watch
        self._pages = pages
        self._final: dict[bytes, None] = {}
        self._holders: dict[bytes, int] = {}
        """Version to the nodes that have accepted it (bit ``n``: member ``n``)."""
        self._known: dict[int, list[tuple[float, int]]] = {}
        """Member number to the epochs of its newest final pages, with the times of the samples."""
        self._pending: list[_Pending] = []
        pages.on_lead(self._on_lead)
        pages.on_support(self._on_support)
        watch.on_message("checkpoint-manifest", self._on_manifest)
        watch.on("sample", self._on_sample)
        watch.on("node-down", self._on_down)
        watch.on_tick(self._on_tick)

    # The chain of final versions

    def _on_lead(self, page: TracedPage) -> None:
        """Extend the final versions to the one that a final page names."""
        before, head = self._pages.leads[-2].head, page.state.lead.head
        if head == before:
            return
        news = [version.digest for version in self._branch(head)]
        root = self._root(head)
        if not news or (before and (root is None or root.digest != before)):
            what = f"page {short(page.message.digest)} of epoch {page.epoch} makes {short(head)} "
            what += f"final, which does not descend from {short(before) or 'any version'}"
            self._watch.report("final-versions", "world", what)
        self._final |= dict.fromkeys(news)

    def _branch(self, digest: bytes) -> Iterator[Opened]:
        """Yield a version and its ancestors that are not final, from the newest on."""
        version = self._watch.wire.message(digest)
        while version is not None and version.digest not in self._final:
            yield version
            version = self._watch.wire.message(version.fields["parent"])

    def _root(self, digest: bytes) -> Opened | None:
        """Return the newest final version that a version descends from, or is."""
        for version in self._branch(digest):
            digest = version.fields["parent"]
        return self._watch.wire.message(digest) if digest in self._final else None

    # Versions that nodes accept

    def _on_manifest(self, event: Event, member: TracedNode, manifest: Opened) -> None:
        holders = self._holders.get(manifest.digest, 0)
        self._holders[manifest.digest] = holders | 1 << member.number
        if not member.honest or manifest.signer == member.peer or manifest.digest in self._final:
            return
        leads = self._leads(member, event.at)
        flaw = self._conflict(manifest, leads[0]) or self._term_flaw(manifest, leads)
        if flaw:
            version = manifest.fields["version"]
            what = f"took version {version} ({short(manifest.digest)}), {flaw}"
            self._watch.report("final-versions", event.node, what, (version, version - 1))

    def _leads(self, member: TracedNode, now: float) -> list[TracedLead]:
        """Return the leads that a node may have known when it accepted what it stores now."""
        before = now - WRITE_EPOCHS * self._watch.rules.epoch_seconds
        known = [epoch for at, epoch in self._known.get(member.number, ()) if at <= before]
        leads = self._pages.leads
        place = bisect_right(leads, known[-1] if known else -1, key=lambda lead: lead.epoch)
        return leads[max(0, place - 1) :]

    def _conflict(self, manifest: Opened, known: TracedLead) -> str:
        final = self._watch.wire.message(known.head) if known.head else None
        if final is None:
            return ""
        root = self._root(manifest.digest)
        if root is not None and root.fields["version"] >= final.fields["version"]:
            return ""
        return f"which conflicts with {short(known.head)}, final for it since epoch {known.epoch}"

    def _term_flaw(self, manifest: Opened, leads: list[TracedLead]) -> str:
        term, parent = manifest.fields["term"], manifest.fields["parent"]
        if all(lead.term != term for lead in leads):
            return f"of term {term}, while term {leads[-1].term} leads"
        before = self._watch.wire.message(parent) if parent else None
        if before is not None and before.fields["term"] == term:
            return ""
        begins = any((lead.term, lead.head) == (term, parent) for lead in self._pages.leads)
        return "" if begins else f"with which term {term} does not begin at a final version"

    # Members' votes and final pages

    def _on_support(self, event: Event, member: TracedNode, page: TracedPage) -> None:
        head = page.state.lead.head
        if not member.honest or head == page.before.lead.head:
            return

        def flaw() -> str:
            if self._holders.get(head, 0) >> member.number & 1:
                return ""
            what = f"votes for page {short(page.message.digest)} of epoch {page.epoch}"
            return f"{what}, whose final version {short(head)} it has not accepted"

        self._judge_later(event, member, flaw)

    def _on_sample(self, event: Event) -> None:
        member, epoch = self._watch.swarm.members.get(event.node), event.facts.get("final_epoch")
        if member is None or not member.honest or not isinstance(epoch, int):
            return
        known = self._known.setdefault(member.number, [])
        if known and known[-1][1] == epoch:
            return
        before = event.at - WRITE_EPOCHS * self._watch.rules.epoch_seconds
        old = [item for item in known if item[0] <= before]
        known[:] = [*old[-1:], *known[len(old) :], (event.at, epoch)]
        stated: int = epoch

        def flaw() -> str:
            if stated < 0 or stated in self._pages.final_epochs:
                return ""
            return f"follows a page of epoch {stated} that is not final"

        self._judge_later(event, member, flaw)

    def _judge_later(self, event: Event, member: TracedNode, flaw: Callable[[], str]) -> None:
        due_at = event.at + WRITE_EPOCHS * self._watch.rules.epoch_seconds
        self._pending.append(_Pending(due_at, member, flaw))

    def _on_down(self, event: Event) -> None:
        """Forget what a node may not have written, and all that it has lost with its disk."""
        member = self._watch.swarm.members.get(event.node)
        if member is None:
            return
        self._known.pop(member.number, None)
        self._pending = [one for one in self._pending if one.member is not member]
        if event.facts.get("how") == "lost":
            kept = ~(1 << member.number)
            self._holders = {one: bits & kept for one, bits in self._holders.items()}

    def _on_tick(self, now: float) -> None:
        due = [one for one in self._pending if one.due_at <= now]
        self._pending = [one for one in self._pending if one.due_at > now]
        for one in due:
            flaw = one.flaw()
            if flaw:
                self._watch.report("final-versions", one.member.name, flaw)

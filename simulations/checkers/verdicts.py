"""Verdict rule: one verdict per honest validator, commit and page, also after a crash."""

from simulations.checkers.quorum import Quorum
from simulations.checkers.swarm import TracedNode
from simulations.checkers.watch import Watch
from simulations.checkers.wire import Opened, short
from simulations.runtime.trace import Event


class Verdicts:
    """Remembers the first verdict of each validator on each commit, wherever it was seen."""

    def __init__(self, watch: Watch, quorum: Quorum) -> None:
        self._watch = watch
        self._quorum = quorum
        self._first: dict[tuple[str, bytes, bytes], Opened] = {}
        watch.on_message("verdict", self._on_verdict)
        watch.on_message("certificate", self._on_certificate)
        watch.on_forget(self._forget)

    def _on_verdict(self, event: Event, _member: TracedNode, verdict: Opened) -> None:
        self._see(event.node, verdict)

    def _on_certificate(self, event: Event, _member: TracedNode, certificate: Opened) -> None:
        if certificate.stores == 1:
            for verdict in (
                *self._quorum.verdicts(certificate),
                *self._quorum.dissents(certificate),
            ):
                self._see(event.node, verdict)

    def _see(self, node: str, verdict: Opened) -> None:
        commit: bytes = verdict.fields["commit"]
        page: bytes = verdict.fields["page"]
        first = self._first.setdefault((verdict.signer, commit, page), verdict)
        validator = self._watch.swarm.by_peer.get(verdict.signer)
        if first is verdict or validator is None or not validator.honest:
            return
        if not (verdict.well_signed and first.well_signed):
            return
        same = first.fields["accept"] is verdict.fields["accept"]
        if same and validator.state_lost_at >= first.first_at:
            return  # it lost the record of its earlier verdict
        said = "accept" if verdict.fields["accept"] else "reject"
        before = "accept" if first.fields["accept"] else "reject"
        what = f"{validator.name} signed a second verdict of {short(commit)}: {before}, then {said}"
        self._watch.report("one-verdict", node, what, (commit,))

    def _forget(self, oldest: float) -> None:
        self._first = {key: item for key, item in self._first.items() if item.first_at >= oldest}

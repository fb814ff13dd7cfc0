"""Shadowed step rule: no altered version becomes final, and honest trainers compute equal steps."""

from simulations.checkers.pages import Pages, TracedPage
from simulations.checkers.swarm import TracedNode
from simulations.checkers.watch import Watch
from simulations.checkers.wire import Opened, short
from simulations.runtime.trace import Event


class ShadowedSteps:
    """Follows the final versions, and the reports that trainers sign.

    - ``no-altered-final``: no final version has weights that its trainer altered after the step.
    - ``equal-steps``: an honest trainer reports the policy that an honest leader has published.
    """

    def __init__(self, watch: Watch, pages: Pages) -> None:
        self._watch = watch
        self._altered: dict[str, None] = {}
        """Policy digests in hexadecimal."""
        self._final: dict[bytes, None] = {}
        watch.on("policy-altered", self._on_altered)
        watch.on_message("step-report", self._on_report)
        pages.on_lead(self._on_lead)

    def _on_altered(self, event: Event) -> None:
        self._altered[str(event.facts["digest"])] = None

    def _on_lead(self, page: TracedPage) -> None:
        version = self._watch.wire.message(page.state.lead.head)
        while version is not None and version.digest not in self._final:
            self._final[version.digest] = None
            if version.fields["policy"].hex() in self._altered:
                number = version.fields["version"]
                what = f"version {number} ({short(version.digest)}) is final and altered"
                self._watch.report("no-altered-final", "world", what, (number,))
            version = self._watch.wire.message(version.fields["parent"])

    def _on_report(self, event: Event, member: TracedNode, report: Opened) -> None:
        version = self._watch.wire.message(report.fields["manifest"])
        if version is None or not member.honest:
            return
        honest = self._watch.swarm.honest
        is_equal = report.fields["policy"] == version.fields["policy"]
        if honest(report.signer) and honest(version.signer) and not is_equal:
            number = version.fields["version"]
            what = f"{self._watch.swarm.name(report.signer)} computed another version {number}"
            self._watch.report("equal-steps", event.node, what, (number,))

"""Round rule: a version takes only results that its trainers signed for its own plan."""

from typing import Any

from simulations.checkers.swarm import TracedNode
from simulations.checkers.watch import Watch
from simulations.checkers.wire import Opened, short
from simulations.runtime.trace import Event


class TrainedRounds:
    """Follows plans and results, and compares them with the versions that honest nodes accept.

    - ``planned-round``: the plan of a version has its parent, batch and trainers, and its signer.
    - ``signed-results``: each difference in it is a result that this trainer signed for the plan.
    - ``one-result``: an honest trainer signs one result for a plan.
    """

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._results: dict[tuple[str, bytes], Opened] = {}
        """Results by trainer and difference."""
        self._signed: dict[tuple[str, bytes], bytes] = {}
        """Digest of the result of each trainer for each plan."""
        self._checked: dict[bytes, None] = {}
        watch.on_message("round-result", self._on_result)
        watch.on_message("checkpoint-manifest", self._on_version)

    def _on_result(self, event: Event, _member: TracedNode, result: Opened) -> None:
        if not result.well_signed:
            return
        self._results[result.signer, result.fields["difference"]] = result
        plan = result.fields["plan"]
        first = self._signed.setdefault((result.signer, plan), result.digest)
        if first != result.digest and self._watch.swarm.honest(result.signer):
            what = f"{self._watch.swarm.name(result.signer)} signed two results for {short(plan)}"
            self._watch.report("one-result", event.node, what, ())

    def _on_version(self, event: Event, member: TracedNode, version: Opened) -> None:
        made = version.fields.get("round")
        if made is None or not member.honest or version.digest in self._checked:
            return
        self._checked[version.digest] = None
        number = version.fields["version"]
        plans: dict[bytes, None] = {}
        for contribution in made["contributions"]:
            trainer = self._watch.rules.trainers[contribution["trainer"]]
            result = self._results.get((trainer, contribution["difference"]))
            if result is None:
                what = f"version {number} takes a result that trainer {trainer} did not sign"
                self._watch.report("signed-results", event.node, what, (number,))
                return
            plans[result.fields["plan"]] = None
        plan = self._watch.wire.message(next(iter(plans)))
        if len(plans) > 1 or plan is None or not self._fits(version, plan, made):
            what = f"version {number} is not that of its plan"
            self._watch.report("planned-round", event.node, what, (number,))

    def _fits(self, version: Opened, plan: Opened, made: dict[str, Any]) -> bool:
        names = "parent", "term", "batch", "page", "omitted"
        same = all(version.fields[name] == plan.fields[name] for name in names)
        trainers = plan.fields["trainers"] == made["trainers"]
        return same and trainers and plan.signer == version.signer

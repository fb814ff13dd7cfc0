"""Weights rule: engines use only weights that a manifest names and that training makes."""

from simulations.checkers.swarm import TracedNode
from simulations.checkers.watch import Watch
from simulations.checkers.wire import Opened, shown
from simulations.runtime.trace import Event


class Weights:
    """Compares the weights that engines loaded with the published ones.

    ``claimed`` is the digest that the node requested, ``actual`` the digest of the tensors that the
    engine found. A dishonest worker may load any weights; verification must catch its rollouts. No
    honest node loads or holds weights that a trainer has poisoned.
    """

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._published: dict[int, dict[str, None]] = {}
        """Policy digests in hexadecimal, by version."""
        self._poisoned: dict[str, None] = {}
        watch.on_message("checkpoint-manifest", self._on_manifest)
        watch.on("policy-poisoned", self._on_poisoned)
        watch.on("policy-loaded", self._on_loaded)
        watch.on("stored", self._on_stored)

    def _on_manifest(self, _event: Event, _member: TracedNode, manifest: Opened) -> None:
        policies = self._published.setdefault(manifest.fields["version"], {})
        policies[manifest.fields["policy"].hex()] = None

    def _on_poisoned(self, event: Event) -> None:
        self._poisoned[shown(event.facts["digest"])] = None

    def _on_loaded(self, event: Event) -> None:
        member = self._watch.swarm.members.get(event.node)
        if member is None or not member.honest:
            return
        facts = event.facts
        version = facts["version"]
        claimed, actual = shown(facts["claimed"]), shown(facts["actual"])
        what = f"loaded {actual} as version {shown(version)}"
        if claimed != actual:
            self._report(event, version, f"{what}, which is {claimed}")
        else:
            self._require_published(event, version, actual, what)

    def _on_stored(self, event: Event) -> None:
        facts = event.facts
        if facts["table"] != "policies" or not isinstance(facts["key"], bytes):
            return
        version = int.from_bytes(facts["key"], "big")
        member = self._watch.swarm.members.get(event.node)
        # A trainer holds a version just before it signs its manifest.
        if member is None or member.peer in self._watch.rules.trainers:
            return
        policy = shown(facts["value"])
        self._require_published(event, version, policy, f"holds {policy} as version {version}")

    def _require_published(self, event: Event, version: object, policy: str, what: str) -> None:
        genesis = version == 0 and policy == self._watch.rules.genesis_policy.hex()
        published = isinstance(version, int) and policy in self._published.get(version, {})
        if policy in self._poisoned:
            self._report(event, version, f"{what}, which no training makes")
        elif not (genesis or published):
            self._report(event, version, f"{what}, which was never published")

    def _report(self, event: Event, version: object, what: str) -> None:
        subjects = (version,) if isinstance(version, int) else ()
        self._watch.report("right-weights", event.node, what, subjects)

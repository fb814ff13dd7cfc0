"""Version rule: a term uses each version number once, and is led by the trainer whose turn it is.

Which of two chains a node follows is a rule of ``final_versions``.
"""

from collections.abc import Sequence

from simulations.checkers.swarm import TracedNode
from simulations.checkers.watch import Watch
from simulations.checkers.wire import Opened
from simulations.runtime.trace import Event

ANCESTORS_MAX = 64
"""Ancestors of a batch that are searched for a commit learned from before."""


class Versions:
    """Every manifest that a node accepted from another one.

    A manifest that only its author stored is no version. The author may have crashed before the
    announcement, or its replica refused it.
    """

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._by_term: dict[tuple[int, int], Opened] = {}
        self._checked: dict[tuple[bytes, bool], None] = {}
        watch.on_message("checkpoint-manifest", self._on_manifest)

    def _on_manifest(self, event: Event, member: TracedNode, manifest: Opened) -> None:
        if not member.honest or manifest.signer == member.peer:
            return
        key = manifest.digest, manifest.well_signed
        if key in self._checked:
            return
        self._checked[key] = None
        fields = manifest.fields
        version, term = fields["version"], fields["term"]
        first = self._by_term.setdefault((term, version), manifest)
        if first.digest != manifest.digest and self._watch.swarm.honest(manifest.signer):
            self._report(event, version, f"version {version} of term {term} exists twice")
        self._check_place(event, manifest)

    def _check_place(self, event: Event, manifest: Opened) -> None:
        rules, fields = self._watch.rules, manifest.fields
        version = fields["version"]
        if manifest.signer not in rules.trainers or not manifest.well_signed:
            self._report(event, version, f"version {version} is not signed by a trainer")
        elif manifest.signer != rules.trainers[fields["term"] % len(rules.trainers)]:
            self._report(event, version, f"version {version} is not of its term's leader")
        if version == 0:
            if fields["policy"] != rules.genesis_policy or fields["parent"] or fields["batch"]:
                self._report(event, 0, "version 0 is not the genesis policy")
            return
        parent = self._watch.wire.message(fields["parent"])
        if parent is None or parent.fields.get("version") != version - 1:
            self._report(event, version, f"the parent of version {version} is not the one before")
        elif parent.fields["term"] > fields["term"]:
            self._report(event, version, f"the term falls from version {version - 1} to {version}")
        else:
            self._check_batch(event, manifest)

    def _check_batch(self, event: Event, manifest: Opened) -> None:
        """Check that a batch has no expired commit and repeats none, also none of an ancestor."""
        batch: tuple[bytes, ...] = manifest.fields["batch"]
        version = manifest.fields["version"]
        learned = dict.fromkeys(batch)
        twice = len(learned) != len(batch)
        ancestor = self._watch.wire.message(manifest.fields["parent"])
        for _ in range(ANCESTORS_MAX):
            if ancestor is None or twice:
                break
            twice = any(commit in learned for commit in ancestor.fields["batch"])
            ancestor = self._watch.wire.message(ancestor.fields["parent"])
        if twice:
            self._report(event, version, f"version {version} learned from a rollout a second time")
        commits = [one for one in map(self._watch.wire.message, batch) if one is not None]
        used = min((one.fields["version"] for one in commits), default=version)
        if not twice and used + 1 + self._watch.rules.async_level < version:
            self._report(event, version, f"version {version} learned from a rollout of {used}")

        self._check_held_out(event, version, commits)

    def _check_held_out(self, event: Event, version: int, batch: Sequence[Opened]) -> None:
        """Check that no rollout of a batch belongs to the evaluation of its version."""
        for commit in batch:
            if commit.fields["evaluation"]:
                measured = commit.fields["version"]
                what = f"version {version} learned from an evaluation of version {measured}"
                self._report(event, version, what)

    def _report(self, event: Event, version: int, what: str) -> None:
        self._watch.report("one-chain", event.node, what, (version, version - 1))

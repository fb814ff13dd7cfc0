"""After the faults have ended, versions keep coming."""

from simulations.checkers.swarm import TracedNode
from simulations.checkers.watch import Watch
from simulations.checkers.wire import Opened
from simulations.runtime.trace import Event


class Progress:
    """A version newer than all before it is published every ``epochs`` at the latest."""

    def __init__(self, watch: Watch, epochs: int) -> None:
        self._watch = watch
        self._epochs = epochs
        self._newest = -1
        self._newest_at = 0.0
        watch.on_message("checkpoint-manifest", self._on_manifest)
        watch.on_tick(self._on_tick)

    def _on_manifest(self, event: Event, member: TracedNode, manifest: Opened) -> None:
        version = manifest.fields["version"]
        # A version that others hold has been published; one that only its author has may be lost.
        if version > self._newest and manifest.signer != member.peer:
            self._newest, self._newest_at = version, event.at

    def _on_tick(self, now: float) -> None:
        rules, calm_since = self._watch.rules, self._watch.swarm.calm_since
        if calm_since is None or self._newest >= rules.steps:
            return
        waited_epochs = (now - max(calm_since, self._newest_at)) / rules.epoch_seconds
        if waited_epochs > self._epochs:
            what = f"no version after {self._newest} for {waited_epochs:.0f} epochs without faults"
            self._watch.report("progress", "world", what, (self._newest,))

"""Recorded honest engines, judged as one run's ledger would."""

from dataclasses import dataclass, field, replace

from protocol.core.rng import Rng
from protocol.messages import WITNESSES
from protocol.rollout.audit import AuditResult, Past, decide
from protocol.rollout.fit import Decided, fit_of
from protocol.rollout.statistics import measured
from protocol.rollout.witness import WitnessValue
from simulations.ports.rounding import CHUNK_TOKENS, Rounding, recorded
from simulations.scenario.scenario import load_scenario
from tests.worlds.messages import run_manifest

ROUNDING = load_scenario("rounding").recipe().toploc.model_dump()
"""Thresholds for the recorded bf16 engines."""

OTHER_MODEL = ROUNDING | {
    "honest": {
        name: value | {"mean": value["mean"] / 20, "variance": value["variance"] / 400}
        for name, value in ROUNDING["honest"].items()
    }
}
"""Thresholds of a model whose engines differ 20 times less."""

OTHER_PRECISION = run_manifest().toploc.model_dump() | {"top_k": 128}
"""Thresholds of fp32, which every single value exceeds too."""

SEQUENCES = 4
TOKENS = SEQUENCES * 8 * CHUNK_TOKENS
"""Tokens of a rollout."""


def under(thresholds):
    return run_manifest(toploc=thresholds)


@dataclass
class Judged:
    """Workers with rollouts judged in turn, and the findings of each."""

    manifest: object
    workers: int
    distort: object = lambda _worker, own: own
    seed: str = "rounded"
    findings: dict[str, list[AuditResult]] = field(default_factory=dict)

    def __post_init__(self):
        rng = Rng(bytes(32)).child(self.seed)
        self._rounding = Rounding(recorded("rounding-bf16"), rng)
        self.findings = {f"worker {n}": [] for n in range(self.workers)}

    def examined(self, worker) -> AuditResult:
        """Return one validator's finding on one more rollout."""
        claimed = [-0.5] * (8 * CHUNK_TOKENS)
        own = [self.distort(worker, self._rounding.recomputed(claimed)) for _ in range(SEQUENCES)]
        rules = self.manifest.toploc
        sequences = [measured(rules, claimed, one) for one in own]
        past = Past(worker, self.decided[worker], fit_of(rules, self.decided))
        found = decide(self.manifest, sequences, range(SEQUENCES), past)
        return replace(found, witness=(WitnessValue(-1.0, 7),) * WITNESSES)

    def judge(self, rounds) -> "Judged":
        for _ in range(rounds):
            for worker, found in self.findings.items():
                found.append(self.examined(worker))
        return self

    @property
    def decided(self) -> dict[str, list[Decided]]:
        return {
            worker: [Decided(one.accept, one.reason, one.sums) for one in found]
            for worker, found in self.findings.items()
        }

    @property
    def reasons(self) -> set[str]:
        return {one.reason for found in self.findings.values() for one in found}

"""False rejections: honest rollouts of a founded run, verified with other batch sizes.

``generate`` makes rollouts as workers do for version 0 and keeps the bodies. ``judge`` verifies
them as validators do, in slot order and with each worker's history; the two may run on different
machines. With ``--thresholds`` it uses another run's thresholds; the last line states whether the
ledger would doubt the fit.

    python benchmarks/models/honest.py generate RUN --out BODIES --rollouts 100 --batch 64
    python benchmarks/models/honest.py judge RUN BODIES... [--prefill-tokens 512] [--json]

RUN is a directory made by ``prime-node run create``.
"""

import argparse
import asyncio
import json
import sys
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgpack
import torch

from node.local.run_pin import load_run
from node.local.system import ThreadBackground
from protocol.core.crypto import Identity, digest
from protocol.core.types import PeerId, Version
from protocol.messages import RolloutCommit
from protocol.rollout.assignment import assign
from protocol.rollout.audit import AuditResult, Past
from protocol.rollout.body import RolloutSequence, encode_body
from protocol.rollout.fit import Decided, fit_of
from protocol.rollout.statistics import Compared, Measurement, compared, compared_extremes
from protocol.run.manifest import RunManifest
from protocol.run.recipe import ToplocSection
from roles.engines.builtin.generation import TransformersGenerationEngine
from roles.engines.builtin.verification import TransformersVerificationEngine
from roles.engines.task_loader import task_of
from roles.ports.engines import GenerationRequest, Policy, Unscorable, VerificationRequest
from roles.runtime.scoring import Task
from roles.validator.judgement import Judged, judge

WORKERS = 4
"""Number of worker keys: a fit needs several workers."""

ATTENTIONS = ("sdpa", "eager")


class Run:
    """A founded run: rules, first policy and task."""

    def __init__(self, directory: Path, thresholds: Path | None = None) -> None:
        self.manifest: RunManifest = load_run(directory / "run.toml").manifest
        if thresholds is not None:
            other = load_run(thresholds / "run.toml").manifest.toploc
            self.manifest = self.manifest.model_copy(update={"toploc": other})
        self.policy = Policy(
            Version(0), self.manifest.genesis_policy, directory / "genesis.safetensors"
        )
        self._files = directory / "task"

    @asynccontextmanager
    async def task(self) -> AsyncIterator[Task]:
        """Open the run's task; end its threads afterwards."""
        background = ThreadBackground()
        environment = task_of(self.manifest, self._files, background)
        await environment.open()
        try:
            yield Task(self.manifest, environment)
        finally:
            background.close()


def worker_of(number: int) -> PeerId:
    """Return the peer id of a worker of this measurement."""
    return Identity(bytes([number]) * 32).peer_id


async def generate(run: Run, options: argparse.Namespace) -> None:
    """Generate rollouts, alternating the workers, and append each to a file of msgpack."""
    manifest = run.manifest
    engine = TransformersGenerationEngine(
        manifest.model,
        manifest.toploc,
        device=options.device,
        batch_sequences_max=options.batch,
    )
    await engine.load(run.policy)
    checkpoint = digest(manifest.genesis_policy)  # of a version that is never announced here
    async with run.task() as task:
        for number in range(options.first, options.first + options.rollouts):
            worker, slot = worker_of(1 + number % WORKERS), number // WORKERS
            assignments = assign(manifest, worker, slot)
            prompts = await task.prompts(assignments)
            asked = [
                GenerationRequest(prompt, item.noise_seed, manifest.sampling.tokens_max)
                for item, prompt in zip(assignments, prompts, strict=True)
            ]
            made = await engine.generate(asked, manifest.sampling.temperature)
            rewards = await task.rewards(assignments, [one.tokens for one in made])
            if isinstance(rewards, Unscorable):
                raise SystemExit(f"slot {slot}: {rewards.reason}")
            body = encode_body(
                [
                    RolloutSequence(one.tokens, one.logprobs, reward, one.proofs)
                    for one, reward in zip(made, rewards, strict=True)
                ]
            )
            tokens = sum(len(one.tokens) for one in made)
            row = {"worker": worker, "slot": slot, "checkpoint": checkpoint, "tokens": tokens}
            with options.out.open("ab") as file:
                file.write(msgpack.packb(row | {"sequences": len(made), "body": body}))
            progress(f"generated {number + 1 - options.first} of {options.rollouts}")
    engine.close()


async def judged(run: Run, options: argparse.Namespace) -> dict[str, Any]:
    """Verify all rollouts of the files; return counts, reasons, and whether the fit is doubtful."""
    manifest, rules = run.manifest, run.manifest.toploc
    engine = TransformersVerificationEngine(
        manifest.model,
        rules,
        device=options.device,
        batch_tokens_max=options.prefill_tokens,
        attention=options.attention,
    )
    await engine.load(run.policy)

    async def measure(requests: Sequence[VerificationRequest]) -> Sequence[Measurement]:
        return await engine.measure(Version(0), requests, manifest.sampling.temperature)

    decided: dict[PeerId, list[Decided]] = {}
    reasons: Counter[str] = Counter()
    used: dict[str, float] = {}
    tokens = 0
    async with run.task() as task:
        for row in rows_of(options.bodies, options.rollouts):
            worker, commit = PeerId(row["worker"]), commit_of(row)
            past = Past(worker, decided.get(worker, ()), fit_of(rules, decided))
            case = Judged(worker, commit, row["body"])
            finding = await judge(manifest, task, case, lambda past=past: past, measure)
            if not isinstance(finding, AuditResult):
                raise SystemExit(str(finding))
            decided.setdefault(worker, []).append(
                Decided(finding.accept, finding.reason, finding.sums)
            )
            reasons[finding.reason] += 1
            for one in limits_of(rules, finding):
                used[one.name] = max(used.get(one.name, 0.0), one.value / one.allowed)
            tokens += commit.tokens
            progress(f"judged {reasons.total()}: {dict(reasons)}")
            if not finding.accept:
                sys.stderr.write(
                    f"\n{worker} slot {commit.slot}: {finding.reason} {finding.detail}\n"
                )
    engine.close()
    return {
        "rollouts": reasons.total(),
        "tokens": tokens,
        "rejected": reasons.total() - reasons["accepted"],
        "reasons": dict(reasons),
        "most_of_limit": {name: round(share, 2) for name, share in used.items()},
        "doubt": [str(one) for one in fit_of(rules, decided).misfits],
        "prefill_tokens": options.prefill_tokens,
        "attention": options.attention,
        "device": options.device,
        "threads": torch.get_num_threads(),
        "dtype": manifest.model.dtype,
        "thresholds": thresholds_of(rules),
    }


def limits_of(rules: ToplocSection, finding: AuditResult) -> list[Compared]:
    """Return all measurements of a rollout with their limits."""
    if finding.sums is None or finding.extremes is None:
        return []
    means = compared(rules, finding.sums, rules.false_reject_rate)
    return [*means, *compared_extremes(rules, finding.extremes)]


def rows_of(paths: Sequence[Path], most: int | None) -> list[dict[str, Any]]:
    """Return the rollouts of files that ``generate`` wrote, lowest slots first."""
    rows = [row for path in paths for row in msgpack.Unpacker(path.open("rb"))]
    return sorted(rows, key=lambda row: (row["slot"], row["worker"]))[:most]


def commit_of(row: dict[str, Any]) -> RolloutCommit:
    """Return the commit of a row."""
    return RolloutCommit(
        epoch=0,
        version=0,
        checkpoint=row["checkpoint"],
        slot=row["slot"],
        body=digest(row["body"]),
        body_bytes=len(row["body"]),
        sequences=row["sequences"],
        tokens=row["tokens"],
    )


def thresholds_of(rules: ToplocSection) -> str:
    """Return a short description of the thresholds' origin."""
    return rules.measured_on.partition(";")[0]


def progress(text: str) -> None:
    """Print progress."""
    sys.stderr.write(f"\r{text}")
    sys.stderr.flush()


def main() -> None:
    """Parse the options; generate or verify."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    worker = commands.add_parser("generate", help="generate rollouts as workers do")
    worker.add_argument("run", type=Path)
    worker.add_argument("--out", type=Path, required=True, help="file to append bodies to")
    worker.add_argument("--rollouts", type=int, default=100)
    worker.add_argument("--first", type=int, default=0, help="number of the first rollout")
    worker.add_argument("--batch", type=int, default=64, help="sequences decoded at once")
    validator = commands.add_parser("judge", help="verify rollouts as validators do")
    validator.add_argument("run", type=Path)
    validator.add_argument("bodies", type=Path, nargs="+")
    validator.add_argument("--rollouts", type=int, help="verify only the first N rollouts")
    validator.add_argument("--prefill-tokens", type=int, default=1 << 14)
    validator.add_argument("--attention", choices=ATTENTIONS, default="sdpa")
    validator.add_argument("--thresholds", type=Path, metavar="RUN", help="another run's")
    validator.add_argument("--json", action="store_true")
    for command in (worker, validator):
        command.add_argument("--device", default="cpu")
        command.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.command == "generate":
        asyncio.run(generate(Run(options.run), options))
        sys.stderr.write("\n")
        return
    found = asyncio.run(judged(Run(options.run, options.thresholds), options))
    sys.stderr.write("\n")
    if options.json:
        sys.stdout.write(json.dumps(found) + "\n")
        return
    for name, value in found.items():
        sys.stdout.write(f"{name:>14}  {value}\n")


if __name__ == "__main__":
    main()

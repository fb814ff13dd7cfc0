"""Summary of a run for people: what it trains, its rules, and who may join."""

from collections.abc import Iterator
from datetime import UTC, datetime

from node.local.units import bytes_text
from protocol.run.manifest import Predecessor, RunManifest
from protocol.run.recipe import EnvironmentSection
from protocol.run.sections import AdmissionSection

ROLLOUTS_OF_RATE = 3
"""Rule of three: no rejection in ``3 n`` rollouts shows a rate below 1 in ``n``, with 95 %
confidence."""


def run_words(manifest: RunManifest) -> Iterator[tuple[str, str]]:
    """Yield pairs of label and text, the most important first."""
    model, sampling, grpo = manifest.model, manifest.sampling, manifest.grpo
    genesis, committee = manifest.genesis, manifest.committee
    began = datetime.fromtimestamp(genesis.created_at, UTC)
    yield "run", f"{manifest.name}, {manifest.run_id.hex()}"
    yield "creator", f"{genesis.creator}, {began:%Y-%m-%d %H:%M} UTC"
    if genesis.predecessor is not None:
        yield "succeeds", "\n".join(_predecessor(genesis.predecessor))
    yield "model", f"{model.name}, {model.architecture} in {model.dtype}"
    yield "task", ", ".join(_task(manifest.environment))
    if manifest.environment.runtime is not None:
        yield "scored by", str(manifest.environment.runtime)
    files = (f"{name}, {bytes_text(one.total_bytes)}" for name, one in genesis.files.items())
    yield "files", "; ".join(files) or "none"
    answers = f"{sampling.prompts_per_rollout} prompts of {sampling.group_size} answers"
    limits = f"at most {sampling.tokens_max:,} tokens, temperature {sampling.temperature:g}"
    yield "rollout", f"{answers}, each {limits}"
    if sampling.length_targets:
        targets = ", ".join(f"{target:,}" for target in sampling.length_targets)
        cost = f"{sampling.length_penalty:g} of the reward for each token away from it"
        yield "length", f"asked for: {targets}; {cost}"
    batch = f"{grpo.rollouts_per_step} rollouts at most {grpo.async_level} versions old"
    if grpo.outer is not None:
        steps = f"{grpo.outer.inner_steps} steps of each of up to {grpo.outer.trainers} trainers"
        batch = f"{steps}, each from {batch}"
    yield "training", f"{grpo.steps:,} versions, each from {batch}, rate {grpo.learning_rate:g}"
    yield (
        "checks",
        f"{committee.size} validators a rollout, {committee.escalated_size} when they disagree",
    )
    share, seats = committee.reexamine_share, committee.reexamine_size
    yield "late checks", f"{share:.1%} of the rollouts, by {seats} seats of other validators"
    yield "thresholds", ". ".join(_thresholds(manifest))
    workers = "; ".join(_admission(manifest.admission))
    yield "workers", workers + (", a proven lie ends it" if manifest.credit.slash else "")
    yield "trainers", "\n".join(genesis.trainers)
    yield "validators", "\n".join(genesis.validators)


def predecessor_text(predecessor: Predecessor) -> str:
    """Return the run, page and version that a run succeeds, in one line of about 80 characters."""
    return (
        f"run {predecessor.run_id[:16]}… at page {predecessor.page[:16]}… "
        f"(epoch {predecessor.epoch}), version {predecessor.version}"
    )


def _predecessor(predecessor: Predecessor) -> Iterator[str]:
    yield f"run {predecessor.run_id}"
    yield f"at page {predecessor.page} (epoch {predecessor.epoch}), version {predecessor.version}"
    least = "" if predecessor.is_complete else "at least "
    yield (
        f"which had certified {least}{predecessor.rollouts:,} rollouts of "
        f"{predecessor.tokens:,} tokens"
    )


def _thresholds(manifest: RunManifest) -> Iterator[str]:
    """Yield the target rate of the thresholds, its basis, and the rate shown by counting alone."""
    rules, sampling = manifest.toploc, manifest.sampling
    rollout_tokens = sampling.prompts_per_rollout * sampling.group_size * sampling.tokens_max
    aim, rollouts = f"{1 / rules.false_reject_rate:,.0f}", rules.measured_tokens / rollout_tokens
    yield f"measured with {rules.measured_tokens:,} honest tokens: {rules.measured_on}"
    yield f"They reject 1 honest rollout in {aim} at most, if errors elsewhere are as measured"
    shown = int(rollouts / ROLLOUTS_OF_RATE)
    counted = f"1 in {shown:,}" if shown > 1 else "nothing yet"
    needed = ROLLOUTS_OF_RATE * rollout_tokens / rules.false_reject_rate
    yield (
        f"Counting alone shows {counted} for rollouts of {rollout_tokens:,} tokens; 1 in {aim} "
        f"takes {needed:.2g} tokens"
    )


def _admission(rules: AdmissionSection) -> Iterator[str]:
    match rules.rule:
        case "open" if rules.work_bits:
            hashes = f"{2**rules.work_bits:,} hashes of {bytes_text(1024 * rules.work_kib)}"
            yield f"any key with a proof of work of about {hashes}"
        case "open":
            yield "any key"
        case "invite":
            yield f"keys invited by the creator or {len(rules.inviters)} others"
        case "allowlist":
            yield "listed keys"
    if rules.probation_epochs:
        yield f"for versions made {rules.probation_epochs} epochs after admission"


def _task(section: EnvironmentSection) -> Iterator[str]:
    yield section.name
    if section.pass_rates:
        least, most = section.pass_rates
        yield f"rows with a pass rate from {least:g} to {most:g}"
    for name, value in section.options.items():
        yield f"{name} {value}"

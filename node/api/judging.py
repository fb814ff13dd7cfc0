"""Status of the run's thresholds and of validators' scores."""

from collections import Counter

from node.api.status import LISTED_MAX, JudgingStatus
from protocol.ledger.commits import CommitState, Entry
from protocol.messages import Verdict
from protocol.replica.replica import Replica
from protocol.rollout.fit import REWARDS


def judging_status(replica: Replica) -> JudgingStatus:
    """Return thresholds in doubt and differing scores, from the decided rollouts."""
    fit = replica.ledger.decisions().fit
    misfits = fit.misfits
    return JudgingStatus(
        doubts=tuple(map(str, misfits)),
        workers=len(fit.workers),
        workers_off=misfits[0].workers if misfits else 0,
        rewards_differed=dict(_differed(replica).most_common(LISTED_MAX)),
        overruled=dict(sorted(_overruled(replica).items())),
    )


def _differed(replica: Replica) -> Counter[str]:
    return Counter(
        entry.commit.signer
        for entry in replica.ledger.commits.entries.values()
        if entry.state is CommitState.REJECTED and entry.reason in REWARDS
    )


def _overruled(replica: Replica) -> Counter[str]:
    """Count, by signer, the verdicts whose score the outcome contradicts."""
    entries = replica.ledger.commits.entries
    return Counter(
        str(signer)
        for commit in replica.verdicts.pools
        if (entry := entries.get(commit)) is not None and entry.certificate is not None
        for signer, verdict in replica.verdicts.held(commit).items()
        if _contradicts(verdict.message, entry)
    )


def _contradicts(verdict: Verdict, entry: Entry) -> bool:
    accepted = entry.state is CommitState.CERTIFIED
    scored = entry.reason if verdict.accept else verdict.reason
    return verdict.accept is not accepted and scored in REWARDS

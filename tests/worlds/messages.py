"""A small run with all its keys, and builders for every kind of signed message."""

from dataclasses import dataclass, field
from pathlib import Path

import msgpack

from protocol.consensus.committee import draw
from protocol.consensus.seals import seal_of
from protocol.core.codec import encode
from protocol.core.crypto import Identity, digest
from protocol.core.types import Digest, PeerId
from protocol.ledger.commits import CommitState
from protocol.messages import (
    PROTOCOL_VERSION,
    UNMEASURED,
    WITNESSES,
    Certificate,
    CheckpointManifest,
    Contribution,
    Evidence,
    Hardware,
    NodeRecord,
    RolloutCommit,
    RoundPlan,
    RoundResult,
    Signed,
    TrainingRound,
    Verdict,
    VerdictSeal,
    seal,
    signature_of,
)
from protocol.replica.replica import Replica
from protocol.run.manifest import Genesis, Predecessor, RunManifest
from protocol.run.recipe import EnvironmentSection
from protocol.run.toml import load_recipe
from roles.environments.runtime import completed
from tests.worlds.page_book import (
    BookReplica,
    PageBook,
    fast_output,
    fast_verify,
    knows,
    page_book,
)

GENESIS_AT = 1_700_000_000
RECIPE = Path(__file__).parents[2] / "configs" / "runs" / "testnet.toml"

SMALL = {
    "sampling": {"group_size": 2, "prompts_per_rollout": 2, "tokens_max": 8},
    "grpo": {"rollouts_per_step": 2, "rollouts_ahead": 3, "async_level": 2, "steps": 50},
    "committee": {
        "size": 3,
        "escalated_size": 4,
        "escalate_after_epochs": 4,
        "expire_after_epochs": 10,
    },
    "epochs": {"seconds": 10.0, "record_epochs": 5, "refresh_epochs": 1},
    "shardcast": {"versions_kept": 4},
    "toploc": {
        "exponent_mismatches_max": 4,
        "mantissa_error_mean_max": 32.0,
        "mantissa_error_median_max": 32.0,
        "logprob_error_max": 1e-3,
        "sampling_gap_max": 1e-3,
        "logprob_tau": 1e-5,
        "gap_sigma": 1e-6,
        "uniform_audit_share": 1.0,
        "honest": {
            "logprob_error": {"mean": 1e-6, "variance": 1e-12, "clip": 1e-5},
            "logprob_shift": {"mean": 1e-6, "variance": 1e-12, "clip": 1e-5},
            "logprob_outliers": {"mean": 1e-5, "variance": 1e-5, "clip": 1.0},
            "replay_mismatches": {"mean": 1e-4, "variance": 1e-4, "clip": 1.0},
            "sampling_gap": {"mean": 1e-7, "variance": 1e-12, "clip": 1e-5},
            "sampling_surprise": {"mean": 1e-4, "variance": 1e-3, "clip": 8.0},
            "exponent_mismatches": {"mean": 0.1, "variance": 0.1, "clip": 4.0},
            "mantissa_error": {"mean": 4.0, "variance": 4.0, "clip": 32.0},
        },
    },
}
"""Contents to the testnet's recipe: sizes at which the committee rules differ, and round
thresholds."""


def identity(name: str) -> Identity:
    return Identity(digest(name.encode()))


def run_manifest(trainers=1, validators=6, **sections) -> RunManifest:
    """Return a valid manifest; ``sections`` replaces single keys, such as ``grpo={...}``."""
    values = load_recipe(RECIPE.read_text()).model_dump()
    for name in {**SMALL, **sections}:
        values[name] = (values.get(name) or {}) | SMALL.get(name, {}) | sections.get(name, {})
    environment = EnvironmentSection(**values["environment"])
    if environment.in_text:
        values["environment"] = {"runtime": completed(environment)} | values["environment"]
    genesis = Genesis(
        creator=identity("creator").peer_id,
        created_at=GENESIS_AT,
        policy=digest(b"policy 0").hex(),
        trainers=tuple(identity(f"trainer {n}").peer_id for n in range(trainers)),
        validators=tuple(identity(f"validator {n}").peer_id for n in range(validators)),
    )
    return RunManifest(**values, genesis=genesis)


PREDECESSOR = Predecessor(
    run_id=digest(b"run").hex(),
    page=digest(b"page").hex(),
    epoch=90,
    head=digest(b"head").hex(),
    version=7,
    rollouts=100,
    tokens=2000,
    is_complete=False,
)


def succeeding(manifest: RunManifest) -> RunManifest:
    """Return a manifest that names a predecessor."""
    genesis = manifest.genesis.model_copy(update={"predecessor": PREDECESSOR})
    return manifest.model_copy(update={"genesis": genesis})


def found(reason: str = "accepted", **fields) -> list[Verdict]:
    """Return the single verdict of a certificate."""
    return [verdict_of(bytes(32), bytes(32), reason, **fields)]


def verdict_of(commit, page, reason="accepted", **fields) -> Verdict:
    """Return a verdict with the witness values of every honest validator."""
    count = 0 if reason in UNMEASURED else WITNESSES
    values = {
        "nonce": digest(b"nonce"),
        "witness": tuple(-(10**9) * (place + 1) for place in range(count)),
        "replays": tuple(range(count)),
    }
    return Verdict(
        commit=commit, page=page, accept=reason == "accepted", reason=reason, **values | fields
    )


def set_outcome(ledger, certificate, verdicts, rank=bytes(1)) -> bool:
    """Offer a certificate to a ledger; the replica computes ``rank``, the lower one wins."""
    signed = [Signed(PeerId(f"{n}"), one, Digest(b""), b"") for n, one in enumerate(verdicts)]
    return ledger.offer_certificate(certificate, signed, rank)


@dataclass
class World:
    manifest: RunManifest
    trainers: list[Identity] = field(init=False)
    validators: list[Identity] = field(init=False)
    workers: list[Identity] = field(init=False)
    book: PageBook = field(init=False)
    """Pages of the run's council."""

    def __post_init__(self):
        genesis = self.manifest.genesis
        self.trainers = [identity(f"trainer {n}") for n in range(len(genesis.trainers))]
        self.validators = [identity(f"validator {n}") for n in range(len(genesis.validators))]
        self.workers = [identity(f"worker {n}") for n in range(3)]
        self.run_id = self.manifest.run_id
        self.by_peer = {
            one.peer_id: one for one in (*self.trainers, *self.validators, *self.workers)
        }

        self.book = page_book(self.manifest, self.validators)

    def at(self, epoch) -> float:
        return self.manifest.epoch_start(epoch) + 1

    def replica(
        self, *, roster_at: int | None = 0, pages_to: int = 24, genesis: bool = True
    ) -> Replica:
        """Return a replica that knows version 0, the pages up to an epoch, and all validators.

        The validators are live from epoch ``roster_at`` on; None: it knows none of their records.
        """
        replica = BookReplica(self.manifest, fast_verify, fast_output)
        if pages_to:
            self.book.show(replica, pages_to)
        if roster_at is not None:
            self.refresh(replica, roster_at)
        if genesis:
            replica.receive(self.genesis().envelope, self.at(0))
        return replica

    def restarted(self, replica) -> Replica:
        """Return a replica of what another one would have stored."""
        again = BookReplica(self.manifest, fast_verify, fast_output)
        again.intake.ledger.restore(replica.intake.accounts.leaves)
        for chain in replica.chains():
            again.intake.offer_chain(chain)
        for envelope in replica.envelopes():
            again.restore(envelope)
        again.count_final()
        again.fix_counted()
        return again

    def refresh(self, replica, epoch) -> None:
        for one in self.validators:
            replica.receive(self.record(one, ("validator",), epoch).envelope, self.at(epoch))

    def sealed(self, message, signer) -> Signed:
        return seal(message, self.run_id, signer)

    def record(self, signer, roles, epoch=0, **changes) -> Signed[NodeRecord]:
        fields = {
            "sequence": round(self.at(epoch) * 1000),
            "joined_at": GENESIS_AT * 1000,
            "roles": tuple(roles),
            "addresses": ("/ip4/192.0.2.1/tcp/4001",),
            "hardware": Hardware(gpu="none", cores=2),
            "reachable": True,
            "software": "prime-node 0.1.0",
            "protocol_version": PROTOCOL_VERSION,
            "policy_version": 0,
        }
        return self.sealed(NodeRecord(**fields | changes), signer)

    def commit(self, signer, slot=0, **changes) -> Signed[RolloutCommit]:
        fields = {
            "epoch": 0,
            "version": 0,
            "checkpoint": self.genesis().digest,
            "slot": slot,
            "body": digest(b"body"),
            "body_bytes": 100,
            "sequences": 4,
            "tokens": 10,
        }
        return knows(self.sealed(RolloutCommit(**fields | changes), signer))

    def round_plan(self, parent, trainers=(0,), signer=None, **changes) -> Signed[RoundPlan]:
        """Return a plan of the first of some trainers, by their places in the genesis."""
        fields = {
            "parent": parent.digest,
            "term": trainers[0],
            "batch": (),
            "page": b"",
            "omitted": (),
            "trainers": trainers,
            "planned_at": 1,
        }
        return self.sealed(RoundPlan(**fields | changes), signer or self.trainers[trainers[0]])

    def round_result(self, plan, trainer, **changes) -> Signed[RoundResult]:
        fields = {
            "plan": plan.digest,
            "difference": digest(b"difference %d" % trainer),
            "index": digest(b"index %d" % trainer),
            "index_bytes": 10 + trainer,
            "total_bytes": 1000 + trainer,
        }
        return self.sealed(RoundResult(**fields | changes), self.trainers[trainer])

    def chain(self, signer, count, **changes) -> list[Signed[RolloutCommit]]:
        """Return ``count`` commits of one worker for consecutive slots."""
        return [self.commit(signer, slot, **changes) for slot in range(count)]

    def committee(self, commit):
        return draw(self.manifest, self.book.drawing(commit), commit)

    def verdict(self, signer, commit, *, accept=True, **changes) -> Signed[Verdict]:
        reason = changes.pop("reason", "accepted" if accept else "computation")
        page = changes.pop("page", None) or self.book.drawing(commit).digest
        return self.sealed(verdict_of(commit.digest, page, reason, **changes), signer)

    def verdict_seal(self, verdict, signer=None) -> Signed[VerdictSeal]:
        """Return the seal of a signed verdict, by its author or another signer."""
        own = seal_of(verdict.message, verdict.signer)
        return self.sealed(own, signer or self.by_peer[verdict.signer])

    def certificate(
        self, commit, *, accepted=True, escalated=False, **changes
    ) -> Signed[Certificate]:
        """Return a certificate signed by exactly the right committee."""
        committee = self.committee(commit)
        voters = committee.escalated[: committee.quorum] if escalated else committee.first
        page = changes.get("page", committee.page.digest)
        verdicts = [
            self.verdict(self.by_peer[peer], commit, accept=accepted, page=page) for peer in voters
        ]
        fields = {
            "commit": commit.digest,
            "page": committee.page.digest,
            "escalated": escalated,
            "accepted": accepted,
            "verdicts": tuple(verdict.envelope for verdict in verdicts),
        }
        return self.sealed(Certificate(**fields | changes), self.by_peer[voters[0]])

    def unchecked_certificate(self, commit, *, accepted=True) -> Signed[Certificate]:
        """Return a certificate for a ledger: the replica checks its page and verdicts before."""
        message = Certificate(
            commit=commit.digest,
            page=bytes(32),
            escalated=not accepted,
            accepted=accepted,
            verdicts=(b"",),
        )
        return self.sealed(message, self.validators[0])

    def evidence(self, validator, about, signer=None, **changes) -> Signed[Evidence]:
        """Return evidence by ``signer`` of two contradicting verdicts of ``validator``."""
        fields = {
            "commit": about.envelope,
            "first": self.verdict(validator, about).envelope,
            "second": self.verdict(validator, about, accept=False).envelope,
        }
        return self.sealed(Evidence(**fields | changes), signer or self.workers[0])

    def genesis(self, **changes) -> Signed[CheckpointManifest]:
        return self.checkpoint(None, policy=self.manifest.genesis_policy, **changes)

    def checkpoint(self, parent, trainer=0, **changes) -> Signed[CheckpointManifest]:
        version = 0 if parent is None else parent.message.version + 1
        fields = {
            "version": version,
            "term": 0 if parent is None else parent.message.term,
            "parent": b"" if parent is None else parent.digest,
            "policy": digest(f"policy {version}".encode()),
            "index": digest(b"index"),
            "index_bytes": 10,
            "total_bytes": 100,
            "created_at": GENESIS_AT * 1000,
        }
        made = self.sealed(CheckpointManifest(**fields | changes), self.trainers[trainer])
        return knows(made)


def forged(signed, **fields) -> bytes:
    """Return an envelope with changed outer fields and the old signature."""
    return encode(msgpack.unpackb(signed.envelope) | fields)


def all_certified(ledger) -> bool:
    """Return whether all rollouts used by versions are certified, as far as kept."""
    learned = [
        commit for entry in ledger.chain.checkpoints for commit in entry.manifest.message.batch
    ]
    known = [
        ledger.commits.entries[commit] for commit in learned if commit in ledger.commits.entries
    ]
    return all(entry.state is CommitState.CERTIFIED for entry in known)


def fingerprint(replica) -> tuple:
    """Return a replica's conclusions as a comparable value; its verdicts come last."""
    ledger = replica.ledger
    return (
        tuple(record.envelope for record in replica.roster.records()),
        tuple(
            (key, entry.state, entry.reason, entry.trained_in, entry.certificate)
            for key, entry in sorted(ledger.commits.entries.items())
        ),
        tuple(entry.manifest.digest for entry in ledger.chain.checkpoints),
        repr(ledger.workers.totals),
        tuple(sorted((peer, repr(counts)) for peer, counts in ledger.workers.counts.items())),
        tuple(evidence.digest for evidence in replica.intake.evidence.evidence.values()),
        tuple(
            (key, tuple(sorted(replica.verdicts.held(key))))
            for key in sorted(replica.verdicts.pools)
        ),
    )


def contribution_of(result, trainer) -> Contribution:
    fields = result.message.model_dump(exclude={"plan"})
    return Contribution(trainer=trainer, signature=signature_of(result), **fields)


def round_of(plan, results) -> TrainingRound:
    """Return the round of a version with some results, given by the place of the trainer."""
    return TrainingRound(
        planned_at=plan.message.planned_at,
        trainers=plan.message.trainers,
        contributions=tuple(contribution_of(one, place) for place, one in results.items()),
    )

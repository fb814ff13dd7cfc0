"""Each rule holds on a good trace and detects a bad one."""

import ast
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

import simulations.checkers
from protocol.core.crypto import Identity, peer_id_from_public_key
from protocol.core.types import RunId
from protocol.messages import RolloutCommit, seal
from protocol.rollout.assignment import assign
from simulations.checkers.limits import LIMITS
from simulations.checkers.wire import Rules, Wire, signature_fits
from tests.simulations.trace_examples import GENESIS, SMALL, packed, small_run
from tests.worlds.messages import identity, run_manifest

VALIDATORS = ("validator-0", "validator-1", "validator-2")


def test_checkers_share_no_code_with_what_they_judge():
    for path in Path(simulations.checkers.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in getattr(node, "names", ())]
            if isinstance(node, ast.ImportFrom):
                names = [str(node.module)]
            if isinstance(node, ast.Import | ast.ImportFrom):
                packages = {name.partition(".")[0] for name in names}
                assert not packages & {"protocol", "roles", "node"}, path


def test_a_well_behaved_swarm_breaks_no_rule():
    run = small_run()
    run.emit("world", "calm")
    manifest = run.genesis
    for version in range(1, 8):
        run.wait(3)
        place = {"version": version - 1, "checkpoint": run.digest(manifest), "slot": version - 1}
        commit = run.certified("worker-0", **place)
        run.now += 1
        run.trained(commit)
        manifest = run.published(version, manifest, [commit])
        policy = bytes(31) + bytes([version])
        for name in ("worker-0", "validator-0"):
            key = version.to_bytes(8, "big")
            run.emit(name, "stored", table="policies", key=key, value=policy)
            run.emit(
                name, "policy-loaded", engine="x", version=version, claimed=policy, actual=policy
            )
    run.wait(6)
    assert run.violations == []
    assert run.certificates.certified == 7


# Decoding


def test_envelopes_of_the_protocol_are_read_as_it_reads_them():
    identity = Identity(bytes(32))
    run = small_run()
    commit = RolloutCommit(
        epoch=3,
        version=1,
        checkpoint=bytes(32),
        slot=0,
        body=bytes(32),
        body_bytes=1,
        sequences=1,
        tokens=1,
    )
    signed = seal(commit, RunId(run.run_id), identity)
    wire = Wire(Rules.read(run.manifest), check_signatures=True)
    opened = wire.open(signed.envelope, 0.0)
    assert (opened.digest, opened.signer, opened.well_signed) == (
        signed.digest,
        identity.peer_id,
        True,
    )
    assert opened.fields["epoch"] == 3
    assert wire.open(signed.envelope, 9.0) is opened
    forged = signed.envelope.replace(identity.peer_id.encode(), run.peers["relay"].encode())
    assert not wire.open(forged, 0.0).well_signed


def test_signatures_are_checked_without_the_protocol():
    key = Ed25519PrivateKey.generate()
    signer = peer_id_from_public_key(key.public_key().public_bytes_raw())
    signature = key.sign(b"message")
    assert signature_fits(signer, b"message", signature)
    assert not signature_fits(signer, b"other", signature)
    assert not signature_fits("0O-no-base58", b"message", signature)


@pytest.mark.parametrize("junk", [b"", b"\xc1", packed([1]), packed({"kind": "verdict"})])
def test_unreadable_stored_bytes_are_a_violation(junk):
    run = small_run()
    run.stored(junk, "relay")
    assert run.rules_broken == ["readable"]


def test_old_messages_are_forgotten_and_versions_are_not():
    run = small_run()
    commit = run.certified("worker-0")
    digest, genesis = run.digest(commit), run.digest(run.genesis)
    run.wait(100)
    assert run.watch.wire.message(digest) is None
    assert run.watch.wire.message(genesis) is not None


# Certificates


def test_training_without_a_certificate_is_seen_with_its_causes():
    run = small_run()
    commit = run.commit("worker-0")
    run.spread(commit, "trainer")
    run.stored(run.verdict("validator-0", commit), "validator-0")
    run.trained(commit)
    (violation,) = run.violations
    assert violation.rule == "certified-only"
    assert violation.node == "trainer"
    causes = "\n".join(violation.causes)
    assert "stored rollout-commit" in causes
    assert "stored verdict" in causes
    assert "trained on it" in causes


def test_a_certificate_that_comes_while_the_step_runs_is_too_late():
    run = small_run()
    commit = run.certified("worker-0")
    run.now += 0.5
    run.trained(commit)
    assert run.rules_broken == ["certified-only"]
    assert "0.500 s too late" in run.violations[0].what


def test_what_a_worker_generated_is_told_apart_by_its_slot_and_not_by_when_that_was():
    """Several are in progress, and end in any order."""
    run = small_run()
    first = run.commit("worker-0")
    second = run.commit("worker-0", slot=1)
    for slot in (1, 0):
        seed = run.watch.rules.first_noise_seed(run.peers["worker-0"], slot)
        run.emit("worker-0", "generated", rollout=f"of slot {slot}", seed=seed, seconds=1.0)
    for commit in (first, second):
        run.stored(commit, "worker-0", "trainer")
    run.spread(run.certificate(VALIDATORS[:2], first))
    run.now += 5
    run.emit("trainer", "trained", rollouts="of slot 0", step=1, seconds=1.0)
    assert run.rules_broken == []
    run.emit("trainer", "trained", rollouts="of slot 1", step=2, seconds=1.0)
    assert "without a valid certificate" in run.violations[0].what


def test_the_noise_of_a_slot_is_that_which_workers_are_assigned():
    manifest = run_manifest()
    rules = Rules.read(manifest.encoded())
    for slot in (0, 1, 300):
        worker = identity("worker 0").peer_id
        assigned = assign(manifest, worker, slot)
        assert rules.first_noise_seed(worker, slot) == assigned[0].noise_seed
        assigned = assign(manifest, worker, slot, GENESIS)
        assert rules.first_noise_seed(worker, slot, GENESIS) == assigned[0].noise_seed


def test_only_the_first_violation_is_kept():
    run = small_run()
    run.emit("trainer", "trained", rollouts="first", step=1, seconds=1.0)
    run.emit("trainer", "trained", rollouts="second", step=2, seconds=1.0)
    assert len(run.violations) == 1
    assert "first, which no node generated" in str(run.watch.violation)


def test_a_version_that_learned_from_an_uncertified_rollout_is_not_to_be_taken():
    run = small_run()
    commit = run.commit("worker-0")
    run.stored(commit, "worker-0", "relay")
    manifest = run.checkpoint(1, run.genesis, [commit])
    run.stored(manifest, "trainer")
    assert run.rules_broken == ["certified-only"]


def test_a_rejected_rollout_is_not_certified():
    run = small_run()
    commit = run.commit("liar")
    run.spread(commit, *VALIDATORS)
    rejected = run.certificate(VALIDATORS[:2], commit, accepted=False, escalated=True)
    run.spread(rejected, "trainer")
    run.trained(commit)
    assert "rejects it" in run.violations[0].what


@pytest.mark.parametrize(
    ("spoil", "flaw"),
    [
        (lambda run, c: run.certificate(["validator-0"], c), "2 are needed"),
        (
            lambda run, c: run.certificate(["validator-0", "relay"], c),
            "relay is not of the committee",
        ),
        (
            lambda run, c: run.certificate(VALIDATORS[:2], c, author="worker-0"),
            "its author is not of the council",
        ),
        (
            lambda run, c: run.certificate(["validator-0", "validator-0"], c),
            "counted twice",
        ),
        (lambda run, c: run.certificate(VALIDATORS, c, accepted=False), "cannot reject"),
        (
            lambda run, c: run.certificate(["validator-0"], c, accepted=False, escalated=True),
            "2 are needed",
        ),
    ],
)
def test_certificates_without_a_quorum_are_seen(spoil, flaw):
    run = small_run()
    commit = run.commit("worker-0")
    run.stored(commit, "worker-0", *VALIDATORS)
    certificate = spoil(run, commit)
    run.spread(certificate, "trainer")
    assert run.rules_broken == ["certified-only"]
    assert flaw in run.violations[0].what


def test_verdicts_about_another_commit_make_no_certificate():
    run = small_run()
    commit, other = run.commit("worker-0"), run.commit("liar")
    run.stored(commit, "worker-0")
    run.stored(other, "liar")
    verdicts = [run.verdict(name, other) for name in VALIDATORS[:2]]
    certificate = run.envelope(
        "certificate",
        "validator-0",
        commit=run.digest(commit),
        page=bytes(32),
        escalated=False,
        accepted=True,
        verdicts=verdicts,
        dissents=[],
    )
    run.spread(certificate, "relay")
    assert "about another commit" in run.violations[0].what


def test_an_author_that_is_refused_by_its_own_replica_harms_nobody():
    run = small_run()
    commit = run.commit("worker-0")
    run.stored(commit, "worker-0")
    run.stored(run.certificate(["validator-0"], commit), "validator-0")
    assert run.violations == []


def test_two_larger_committees_that_disagree_are_seen():
    run = small_run()
    commit = run.commit("liar")
    run.stored(commit, "liar", *VALIDATORS)
    first = run.certificate(VALIDATORS[1:], commit, accepted=False, escalated=True)
    run.stored(first, "validator-1", "relay")
    run.watch.swarm.members["validator-1"].behaviour = "two-verdicts"
    second = run.certificate(VALIDATORS[:2], commit, escalated=True)
    assert run.violations == []
    run.stored(second, "validator-0", "trainer")
    assert run.rules_broken == ["one-outcome"]
    assert run.certificates.contradictory == 1


def test_a_certified_lie_is_seen():
    run = small_run()
    run.certified("liar")
    assert run.rules_broken == ["no-false-rollout-certified"]
    assert run.certificates.certified_false == 1


@pytest.mark.parametrize("behaviour", ["", "flood"])
def test_an_honest_rollout_that_is_rejected_is_seen(behaviour):
    run = small_run()
    run.watch.swarm.members["worker-0"].behaviour = behaviour
    for author, broken in (("liar", []), ("worker-0", ["no-honest-rejected"])):
        commit = run.commit(author)
        run.spread(commit)
        run.spread(run.certificate(VALIDATORS[:2], commit, accepted=False, escalated=True))
        assert run.rules_broken == broken


def test_a_peer_that_floods_computes_honest_rollouts():
    run = small_run()
    run.watch.swarm.members["worker-0"].behaviour = "flood"
    run.certified("worker-0")
    assert run.violations == []


# Verdicts and slots


def test_a_second_verdict_of_an_honest_validator_is_seen():
    run = small_run()
    commit = run.commit("worker-0")
    run.stored(commit, "worker-0")
    run.stored(run.verdict("validator-0", commit), "validator-0")
    run.stored(run.verdict("validator-0", commit, detail="again"), "validator-0")
    assert run.rules_broken == ["one-verdict"]


def test_a_validator_whose_disk_is_gone_may_repeat_itself_and_not_contradict_itself():
    run = small_run()
    commit = run.commit("worker-0")
    run.stored(commit, "worker-0")
    run.stored(run.verdict("validator-0", commit), "validator-0")
    run.down("validator-0", "lost")
    run.up("validator-0")
    run.stored(run.verdict("validator-0", commit, detail="again"), "validator-0")
    assert run.violations == []
    run.stored(run.verdict("validator-0", commit, accept=False), "validator-0")
    assert run.rules_broken == ["one-verdict"]


def test_verdicts_inside_certificates_count_too():
    run = small_run()
    commit = run.commit("worker-0")
    run.stored(commit, "worker-0")
    page = run.drawn_for(commit, [run.peers[name] for name in VALIDATORS])
    run.stored(run.verdict("validator-2", commit, accept=False, page=page), "validator-2")
    run.stored(run.certificate(VALIDATORS, commit, escalated=True, page=page), "validator-0")
    assert run.rules_broken == ["one-verdict"]


def test_a_dishonest_validator_may_sign_what_it_likes():
    run = small_run()
    run.watch.swarm.members["validator-0"].behaviour = "two-verdicts"
    commit = run.commit("worker-0")
    run.stored(commit, "worker-0")
    for accept in (True, False):
        run.stored(run.verdict("validator-0", commit, accept=accept), "relay")
    assert run.violations == []


@pytest.mark.parametrize("slot", [2, 0])
def test_an_honest_worker_takes_its_slots_in_order(slot):
    run = small_run()
    first = run.commit("worker-0")
    run.stored(first, "worker-0")
    run.now += 0.1
    run.stored(run.commit("worker-0", slot, body_bytes=99), "worker-0")
    assert run.rules_broken == ["slots-in-order"]


def test_a_worker_whose_disk_is_gone_begins_again():
    run = small_run()
    first = run.commit("worker-0")
    run.stored(first, "worker-0")
    run.wait(1)
    run.down("worker-0", "lost")
    run.up("worker-0")
    run.stored(run.commit("worker-0"), "worker-0")
    assert run.violations == []


def test_one_rollout_is_certified_for_a_slot():
    run = small_run()
    run.watch.swarm.members["worker-0"].behaviour = "flood"
    run.certified("worker-0", slot=3)
    run.certified("worker-0", slot=3, evaluation=True)
    assert run.rules_broken == []
    run.certified("worker-0", slot=3, version=1)
    assert run.rules_broken == ["slots-in-order"]


def test_an_honest_worker_evaluates_no_version_that_the_run_does_not():
    run = small_run()
    run.stored(run.commit("worker-0", evaluation=True), "worker-0")
    assert run.rules_broken == ["slots-in-order"]


# Versions and weights


def test_a_version_number_is_used_once_in_a_term():
    run = small_run()
    run.published(1, run.genesis, policy=b"\1" * 32)
    run.published(1, run.genesis, policy=b"\2" * 32)
    assert run.rules_broken == ["one-chain"]


def test_what_only_its_author_has_stored_never_was_a_version():
    run = small_run()
    run.stored(run.checkpoint(1, run.genesis, policy=b"\1" * 32), "trainer")
    run.published(1, run.genesis, policy=b"\2" * 32)
    assert run.violations == []


@pytest.mark.parametrize(
    "spoil",
    [
        lambda run: run.published(2, run.genesis),
        lambda run: run.published(1, run.genesis, author="relay"),
        lambda run: run.published(0, policy=b"\1" * 32),
        lambda run: run.published(2, run.published(1, run.genesis, term=1), term=0),
    ],
)
def test_a_version_has_its_place_in_the_chain(spoil):
    run = small_run()
    run.led(1, run.genesis)
    spoil(run)
    assert run.rules_broken == ["one-chain"]


def test_nothing_is_learned_twice_in_one_chain():
    run = small_run()
    commit = run.certified("worker-0")
    first = run.published(1, run.genesis, [commit])
    run.published(2, first, [commit])
    assert run.rules_broken == ["one-chain"]
    assert "a second time" in run.violations[0].what


def loaded(run, node="worker-0", version=0, claimed=GENESIS, actual=GENESIS):
    run.emit(node, "policy-loaded", engine="x", version=version, claimed=claimed, actual=actual)


def test_weights_that_are_not_what_they_claim_are_seen():
    run = small_run()
    loaded(run)
    assert run.violations == []
    loaded(run, actual=b"\1" * 32)
    assert run.rules_broken == ["right-weights"]


def test_weights_that_nobody_published_are_seen():
    run = small_run()
    loaded(run, claimed=b"\1" * 32, actual=b"\1" * 32)
    assert run.rules_broken == ["right-weights"]
    run = small_run()
    run.emit("relay", "stored", table="policies", key=bytes(8), value=b"\1" * 32)
    assert run.rules_broken == ["right-weights"]


def test_a_liar_loads_what_it_likes():
    run = small_run()
    loaded(run, node="liar", actual=b"\1" * 32)
    assert run.violations == []


# Other rules


def test_what_is_announced_was_stored_before():
    run = small_run()
    run.stored(run.commit("worker-0"), "relay")
    assert run.rules_broken == ["stored-first"]


def test_messages_and_samples_stay_within_their_limits():
    for name, limit in LIMITS.items():
        run = small_run()
        run.emit("relay", "sample", **{name: limit})
        assert run.violations == []
        run.emit("relay", "sample", **{name: limit + 1})
        assert run.rules_broken == ["within-limits"]
    run = small_run()
    verdict = run.verdict("validator-0", run.commit("worker-0"), detail="x" * 1024)
    run.stored(verdict, "validator-0")
    assert run.rules_broken == ["within-limits"]


def test_ledgers_that_stay_apart_are_seen_after_the_faults_and_not_before():
    run = small_run()
    commit = run.commit("worker-0")
    run.spread(commit)
    certificate = run.certificate(VALIDATORS[:2], commit)
    run.spread(certificate, *(name for name in SMALL if name != "relay"))
    run.emit("world", "fault", what="partition")
    run.wait(3)
    assert run.violations == []
    run.emit("world", "calm")
    run.wait(7)
    (violation,) = run.violations
    assert violation.rule == "ledgers-converge"
    assert violation.node == "relay"


@pytest.mark.parametrize("excuse", ["it came", "it went", "it lied", "too old"])
def test_a_node_that_lacks_an_outcome_may_have_a_reason(excuse):
    run = small_run()
    commit = run.commit("worker-0")
    run.spread(commit)
    certificate = run.certificate(VALIDATORS[:2], commit)
    run.spread(certificate, *(name for name in SMALL if name != "relay"))
    if excuse == "too old":
        run.wait(10)
    run.emit("world", "calm")
    if excuse == "it came":
        run.wait(4)
        run.stored(certificate, "relay")
    elif excuse == "it went":
        run.wait(1)
        run.down("relay")
        run.up("relay", restart=True)
    elif excuse == "it lied":
        run.watch.swarm.members["relay"].behaviour = "stall"
    run.wait(8)
    assert run.violations == []


def test_an_outcome_lost_with_a_disk_is_not_held_any_more():
    run = small_run()
    commit = run.certified("worker-0")
    del commit
    run.down("relay", "lost")
    run.up("relay")
    run.emit("world", "calm")
    run.wait(7)
    assert run.rules_broken == ["ledgers-converge"]


def test_a_swarm_that_stands_still_after_the_faults_is_seen():
    run = small_run()
    run.wait(30)
    assert run.violations == []
    run.emit("world", "calm")
    run.wait(15)
    run.published(1, run.genesis)
    run.wait(19)
    assert run.violations == []
    run.wait(3)
    assert run.rules_broken == ["progress"]


def test_a_graft_inside_the_back_off_is_seen():
    run = small_run()
    run.emit("relay", "prune-in", peer="trainer", topic="t", backoff=60)
    run.now += 1
    run.emit("relay", "graft", peer="trainer", topic="t")
    assert run.violations == []  # it crossed the PRUNE
    run.now += 10
    run.emit("relay", "graft", peer="worker-0", topic="t")
    run.emit("relay", "graft", peer="trainer", topic="other")
    assert run.violations == []
    run.emit("relay", "graft", peer="trainer", topic="t")
    assert run.rules_broken == ["back-off"]


def test_back_off_ends_and_is_forgotten_by_who_restarts():
    run = small_run()
    run.emit("relay", "prune", peer="trainer", topic="t", backoff=60)
    run.emit("trainer", "prune-in", peer="relay", topic="t", backoff=60)
    run.now += 10
    run.down("relay")
    run.up("relay", restart=True)
    run.emit("relay", "graft", peer="trainer", topic="t")
    run.now += 51
    run.emit("trainer", "graft", peer="relay", topic="t")
    assert run.violations == []

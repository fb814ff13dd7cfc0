"""Each rule alone: a trace that violates only this one, or comes as close as allowed."""

from dataclasses import replace

import pytest

from tests.simulations.trace_examples import GENESIS, SMALL, TraceExample, forged, packed, small_run

VALIDATORS = ("validator-0", "validator-1", "validator-2")
NEW, OTHER = b"\1" * 32, b"\2" * 32


# Decoding


@pytest.mark.parametrize("payload", [b"\xc1", packed([1]), b""])
def test_a_message_whose_payload_cannot_be_read_is_a_violation(payload):
    run = small_run()
    fields = {"kind": "verdict", "signature": bytes(64), "signer": run.peers["relay"]}
    run.stored(packed({**fields, "payload": payload}), "relay")
    assert run.rules_broken == ["readable"]


# Certificates


def test_a_trainer_that_lies_may_train_on_what_it_likes():
    run = small_run()
    run.watch.swarm.members["trainer"].behaviour = "other-weights"
    run.emit("trainer", "trained", rollouts="anything", step=1, seconds=1.0)
    assert run.violations == []


def test_every_rollout_of_a_batch_must_be_certified():
    run = small_run()
    first, second = run.certified("worker-0"), run.commit("validator-0")
    run.spread(second)
    run.now += 2
    run.trained(first)
    assert run.violations == []
    run.trained(first, second)
    assert run.rules_broken == ["certified-only"]


def test_a_dishonest_node_may_take_a_version_of_uncertified_rollouts():
    run = small_run()
    commit = run.commit("worker-0")
    run.stored(commit, "worker-0")
    manifest = run.checkpoint(1, run.genesis, [commit])
    run.watch.swarm.members["trainer"].behaviour = "other-weights"
    run.stored(manifest, "trainer", "liar")
    assert run.violations == []
    run.stored(manifest, "relay")
    assert run.rules_broken == ["certified-only"]


def test_nobody_knows_whether_the_rollout_of_an_untrusted_peer_is_honest():
    run = small_run()
    run.roles["untrusted"], run.peers["untrusted"] = ("inference",), run.peers["relay"]
    del run.watch.swarm.by_peer[run.peers["relay"]]
    commit = run.commit("untrusted")
    run.stored(commit, "relay", *VALIDATORS)
    run.spread(run.certificate(VALIDATORS[:2], commit, accepted=False, escalated=True), "trainer")
    assert run.violations == []


# Slots


def test_two_rollouts_are_never_certified_for_one_slot():
    run = small_run()
    run.watch.swarm.members["worker-0"].behaviour = "flood"
    run.certified("worker-0")
    run.certified("worker-0", body_bytes=99)
    assert run.rules_broken == ["slots-in-order"]
    assert "two rollouts are certified for slot 0" in run.violations[0].what


def test_one_rollout_may_have_several_certificates():
    run = small_run()
    commit = run.certified("worker-0")
    run.spread(run.certificate(VALIDATORS[1:], commit))
    assert run.violations == []


@pytest.mark.parametrize("evaluation", [False, True])
@pytest.mark.parametrize("difference", ["worker", "checkpoint"])
def test_training_slots_are_those_of_one_worker_and_others_of_one_checkpoint(
    difference, evaluation
):
    run = small_run()
    run.watch.rules = replace(run.watch.rules, evaluation=(1, 1))
    run.certified("worker-0", evaluation=evaluation)
    if difference == "worker":
        run.certified("validator-2", evaluation=evaluation)
    else:  # another term's version of that number
        run.watch.swarm.members["worker-0"].behaviour = "flood"
        run.certified("worker-0", evaluation=evaluation, checkpoint=bytes(32))
    is_second = difference == "checkpoint" and not evaluation
    assert run.rules_broken == ["slots-in-order"] * is_second


@pytest.mark.parametrize("nobody", ["rejected", "dishonest", "its author"])
def test_two_rollouts_of_a_slot_harm_nobody_until_an_honest_node_takes_both(nobody):
    run = small_run()
    run.watch.swarm.members["worker-0"].behaviour = "other-weights"
    for body_bytes in (1, 2):
        commit = run.commit("worker-0", body_bytes=body_bytes)
        run.stored(commit, "worker-0", *VALIDATORS)
        run.now += 0.1
        verdict = nobody != "rejected"
        if nobody != "rejected":
            run.watch.swarm.members["worker-0"].behaviour = "flood"
        certificate = run.certificate(
            VALIDATORS[:2], commit, accepted=verdict, escalated=not verdict
        )
        holders = {"rejected": ["relay"], "dishonest": ["liar"], "its author": []}[nobody]
        run.stored(certificate, "validator-0", *holders)
    assert run.violations == []


def test_an_honest_worker_begins_with_its_first_slot():
    run = small_run()
    run.stored(run.commit("worker-0", slot=1), "worker-0")
    assert run.rules_broken == ["slots-in-order"]
    assert "slot 1, not 0" in run.violations[0].what


def test_a_liar_takes_the_slots_that_it_likes_as_long_as_they_are_not_certified():
    run = small_run()
    run.stored(run.commit("liar", slot=5), "relay")
    assert run.violations == []


def test_a_worker_may_store_its_rollout_again():
    run = small_run()
    first = run.commit("worker-0")
    second = run.commit("worker-0", slot=1)
    run.stored(first, "worker-0")
    run.stored(second, "worker-0")
    run.stored(first, "worker-0")
    assert run.violations == []


def test_a_worker_that_learned_of_its_rollouts_from_others_goes_on_after_them():
    run = small_run()
    first = run.commit("worker-0")
    run.stored(first, "worker-0", "relay")
    run.down("worker-0", "lost")
    run.up("worker-0")
    run.now += 1
    run.stored(run.commit("worker-0", slot=1), "worker-0")
    assert run.violations == []
    run.stored(run.commit("worker-0", slot=1, body_bytes=99), "worker-0")
    assert run.rules_broken == ["slots-in-order"]


# Verdicts


def test_a_verdict_that_is_only_in_a_certificate_counts_too():
    run = small_run()
    commit = run.commit("worker-0")
    run.stored(commit, "worker-0")
    page = run.drawn_for(commit, [run.peers[name] for name in VALIDATORS[:2]])
    run.stored(run.verdict("validator-1", commit, accept=False, page=page), "validator-1")
    verdicts = [run.verdict(name, commit, page=page) for name in VALIDATORS[:2]]
    run.stored(run.assembled("validator-0", commit, verdicts, page=page), "validator-0")
    assert run.rules_broken == ["one-verdict"]
    assert "validator-1 signed a second verdict" in run.violations[0].what


def test_a_validator_has_one_verdict_of_each_rollout():
    run = small_run()
    for worker in ("worker-0", "validator-2"):
        commit = run.commit(worker)
        run.stored(commit, worker)
        for validator in VALIDATORS[:2]:
            run.stored(run.verdict(validator, commit, accept=worker == "worker-0"), validator)
    assert run.violations == []


def test_a_forged_verdict_is_not_its_validator_s():
    for first_forged in (True, False):
        run = small_run(signatures="ed25519")
        commit = run.commit("worker-0")
        run.stored(commit, "worker-0")
        verdicts = [run.verdict("validator-0", commit, accept=accept) for accept in (True, False)]
        verdicts[not first_forged] = forged(verdicts[not first_forged])
        for verdict in verdicts:
            run.stored(verdict, "validator-0", "relay")
        assert run.violations == []


def test_a_verdict_from_before_a_lost_disk_may_be_repeated_and_one_from_after_may_not():
    run = small_run()
    commit = run.commit("worker-0")
    run.stored(commit, "worker-0")
    run.down("validator-0", "lost")
    run.up("validator-0")
    run.now += 1
    run.stored(run.verdict("validator-0", commit), "validator-0")
    run.stored(run.verdict("validator-0", commit, detail="again"), "validator-0")
    assert run.rules_broken == ["one-verdict"]


# Versions and weights


def test_a_version_is_signed_by_its_trainer():
    run = small_run(signatures="ed25519")
    run.stored(forged(run.checkpoint(1, run.genesis)), "relay")
    assert run.rules_broken == ["one-chain"]
    assert "not signed by a trainer" in run.violations[0].what


@pytest.mark.parametrize("wrong", ["parent", "batch", "policy"])
def test_version_0_is_the_genesis_policy_and_has_no_past(wrong):
    run = small_run()
    commit = run.certified("worker-0")
    fields = {"parent": b"", "policy": GENESIS, "batch": []}
    fields |= {wrong: {"parent": NEW, "batch": [run.digest(commit)], "policy": NEW}[wrong]}
    run.now += 1
    run.spread(run.envelope("checkpoint-manifest", "trainer", version=0, term=1, **fields))
    assert run.rules_broken == ["one-chain"]
    assert "version 0 is not the genesis policy" in run.violations[0].what


def test_two_nodes_do_not_hold_two_versions_of_one_number_and_term():
    run = small_run()
    first, second = (run.checkpoint(1, run.genesis, policy=policy) for policy in (NEW, OTHER))
    run.stored(first, "trainer", "relay")
    run.stored(second, "trainer", "validator-0")
    assert run.rules_broken == ["one-chain"]
    assert "version 1 of term 0 exists twice" in run.violations[0].what


def test_a_batch_holds_no_rollout_twice():
    run = small_run()
    commit = run.certified("worker-0")
    run.published(1, run.genesis, [commit, commit])
    assert run.rules_broken == ["one-chain"]
    assert "a second time" in run.violations[0].what


def test_nothing_is_learned_again_many_versions_later():
    run = small_run()
    commit = run.certified("worker-0")
    manifest = run.published(1, run.genesis, [commit])
    for version in range(2, 6):
        manifest = run.published(version, manifest)
    assert run.violations == []
    run.published(6, manifest, [commit])
    assert run.rules_broken == ["one-chain"]


@pytest.mark.parametrize("too_late", [False, True])
def test_nothing_is_learned_from_a_policy_that_was_too_old(too_late):
    run = small_run()
    commit = run.certified("worker-0")
    last = 1 + run.watch.rules.async_level + too_late
    manifest = run.genesis
    for version in range(1, last):
        manifest = run.published(version, manifest)
    run.published(last, manifest, [commit])
    assert run.rules_broken == ["one-chain"] * too_late


@pytest.mark.parametrize("evaluation", [False, True])
def test_nothing_is_learned_from_an_evaluation(evaluation):
    run = small_run()
    run.watch.rules = replace(run.watch.rules, evaluation=(2, 1))
    run.published(1, run.genesis, [run.certified("worker-0", evaluation=evaluation)])
    assert run.rules_broken == ["one-chain"] * evaluation


def test_two_chains_may_learn_from_one_rollout():
    run = small_run()
    commit = run.certified("worker-0")
    run.published(1, run.genesis, [commit])
    run.led(1, run.genesis)
    run.published(1, run.genesis, [commit], term=1)
    assert run.violations == []


def test_what_dishonest_nodes_take_for_versions_is_their_affair():
    run = small_run()
    for policy in (NEW, OTHER):
        run.stored(run.checkpoint(1, run.genesis, policy=policy), "trainer", "liar")
    assert run.violations == []


def loaded(run, version, claimed, actual):
    run.emit(
        "worker-0", "policy-loaded", engine="x", version=version, claimed=claimed, actual=actual
    )


def test_weights_of_one_version_are_not_those_of_its_other_term():
    run = small_run()
    run.published(1, run.genesis, policy=NEW)
    run.led(1, run.genesis)
    run.published(1, run.genesis, policy=OTHER, term=1)
    loaded(run, 1, NEW, NEW)
    loaded(run, 1, OTHER, OTHER)
    assert run.violations == []
    loaded(run, 1, NEW, OTHER)
    assert run.rules_broken == ["right-weights"]
    assert "which is " + NEW.hex() in run.violations[0].what


def test_the_genesis_policy_needs_no_manifest():
    run = TraceExample(SMALL)
    run.up()
    loaded(run, 0, GENESIS, GENESIS)
    assert run.violations == []


@pytest.mark.parametrize(("version", "policy"), [(2, NEW), (1, GENESIS), (0, NEW)])
def test_weights_are_those_of_the_version_that_they_are_loaded_as(version, policy):
    run = small_run()
    run.published(2, run.published(1, run.genesis, policy=NEW), policy=OTHER)
    loaded(run, version, policy, policy)
    assert run.rules_broken == ["right-weights"]
    assert "was never published" in run.violations[0].what


def test_the_same_holds_of_weights_on_a_disk_but_for_a_trainer_that_is_about_to_publish():
    run = small_run()
    run.published(1, run.genesis, policy=NEW)
    run.emit("trainer", "stored", table="policies", key=(2).to_bytes(8, "big"), value=OTHER)
    run.emit("relay", "stored", table="policies", key=(1).to_bytes(8, "big"), value=NEW)
    run.emit("relay", "stored", table="other", key=(2).to_bytes(8, "big"), value=NEW)
    assert run.violations == []
    run.emit("relay", "stored", table="policies", key=(2).to_bytes(8, "big"), value=NEW)
    assert run.rules_broken == ["right-weights"]


# Durability


@pytest.mark.parametrize("excuse", ["stored", "dishonest", "untrusted"])
def test_only_honest_members_store_before_they_announce(excuse):
    run = small_run()
    commit = run.commit("worker-0")
    if excuse == "stored":
        run.stored(commit, "worker-0")
    elif excuse == "dishonest":
        run.watch.swarm.members["worker-0"].behaviour = "flood"
    else:
        del run.watch.swarm.by_peer[run.peers["worker-0"]]
    run.stored(commit, "relay")
    assert run.violations == []


def test_what_is_forged_was_never_announced():
    run = small_run(signatures="ed25519")
    commit = run.commit("worker-0")
    run.stored(forged(commit), "relay")
    assert run.violations == []
    run.stored(commit, "relay")
    assert run.rules_broken == ["stored-first"]


def test_each_kind_of_message_is_stored_first():
    run = small_run()
    commit = run.commit("worker-0")
    run.stored(commit, "worker-0")
    run.stored(run.verdict("validator-0", commit), "relay")
    assert run.rules_broken == ["stored-first"]


# Limits


@pytest.mark.parametrize(("kind", "limit"), [("verdict", 1024), ("notice", 16 * 1024)])
def test_messages_are_as_long_as_their_kind_may_be_and_no_longer(kind, limit):
    def message(run, length):
        fields = {"commit": bytes(32), "page": bytes(32), "accept": True, "reason": "accepted"}
        bare = len(run.envelope(kind, "validator-0", **fields, x=bytes(256)))
        return run.envelope(kind, "validator-0", **fields, x=bytes(256 + length - bare))

    run = small_run()
    allowed, long = message(run, limit), message(run, limit + 1)
    run.stored(allowed, "validator-0")
    assert (len(allowed), len(long)) == (limit, limit + 1)
    assert run.violations == []
    run.stored(long, "validator-0")
    assert run.rules_broken == ["within-limits"]


# Convergence


def apart(run, lacking="relay"):
    """Deliver a certificate to every node but one; return it."""
    commit = run.commit("worker-0")
    run.spread(commit)
    certificate = run.certificate(VALIDATORS[:2], commit)
    run.spread(certificate, *(name for name in SMALL if name != lacking))
    return certificate


def test_ledgers_have_as_long_as_they_are_given():
    run = small_run()
    run.emit("world", "calm")
    apart(run)
    run.wait(4)
    assert run.violations == []
    run.wait(2)
    assert run.rules_broken == ["ledgers-converge"]


@pytest.mark.parametrize(("epochs", "broken"), [(7, ["ledgers-converge"]), (8, [])])
def test_a_commit_that_nearly_expires_need_not_be_known(epochs, broken):
    """The commit expires after ten: two for clocks, one for the first synchronisation."""
    run = small_run()
    run.emit("world", "fault", what="partition")
    apart(run)
    run.wait(epochs)
    run.emit("world", "calm")
    run.wait(7)
    assert run.rules_broken == broken


def test_a_node_that_restarts_holds_what_it_held():
    run = small_run()
    apart(run, lacking="nobody")
    run.down("relay")
    run.up("relay", restart=True)
    run.emit("world", "calm")
    run.wait(10)
    assert run.violations == []


def test_a_node_that_came_while_others_were_converging_is_not_asked():
    run = small_run()
    run.emit("world", "calm")
    apart(run)
    run.wait(1)
    run.roles["new node"] = ("relay",)
    run.peers["new node"] = run.peers["relay"] + "x"
    run.up("new node")
    run.stored(run.genesis, "relay")
    run.wait(10)
    assert run.violations[0].what.startswith("1 live node (relay)")


def test_a_certificate_that_someone_learns_of_much_later_is_not_new():
    run = small_run()
    run.emit("world", "calm")
    certificate = apart(run, lacking="nobody")
    run.wait(7)
    run.down("relay", "lost")
    run.up("relay")
    run.stored(certificate, "relay")
    run.wait(7)
    assert run.violations == []


# Progress


def test_a_version_that_only_its_author_has_is_no_progress():
    run = small_run()
    run.emit("world", "calm")
    run.wait(15)
    run.stored(run.checkpoint(1, run.genesis), "trainer")
    run.wait(6)
    assert run.rules_broken == ["progress"]


def test_a_version_that_replaces_an_older_one_is_no_progress():
    run = small_run()
    run.published(1, run.genesis)
    run.emit("world", "calm")
    run.wait(15)
    run.led(1, run.genesis)
    run.published(1, run.genesis, term=1)
    run.wait(6)
    assert run.rules_broken == ["progress"]


@pytest.mark.parametrize("behaviour", ["", "two-versions"])
def test_the_versions_of_a_dishonest_leader_are_no_progress_once_they_are_dropped(behaviour):
    run = small_run()
    run.published(2, run.published(1, run.genesis))
    run.emit("world", "calm")
    run.wait(15)
    run.watch.swarm.members["trainer"].behaviour = behaviour
    run.led(1, run.genesis)
    run.wait(5)
    run.published(1, run.genesis, term=1)
    run.wait(18)
    assert run.rules_broken == ([] if behaviour else ["progress"])
    run.wait(5)
    assert run.rules_broken == ["progress"]


def test_the_end_of_a_run_is_judged_too_and_what_was_found_first_stays():
    run = small_run()
    run.emit("world", "calm")
    run.watch.finish(run.now + 100)
    assert run.rules_broken == ["progress"]
    run.watch.note_failure("trainer: an error that came of it")
    run.watch.finish(run.now + 200)
    assert run.rules_broken == ["progress"]
    assert run.watch.violation.rule == "progress"


@pytest.mark.parametrize(("steps", "broken"), [(2, []), (3, ["progress"])])
def test_a_run_that_has_reached_its_end_need_not_go_on(steps, broken):
    run = small_run(steps=steps)
    run.published(2, run.published(1, run.genesis))
    run.emit("world", "calm")
    run.wait(30)
    assert run.rules_broken == broken


# Backoff


def test_a_later_prune_does_not_hide_an_earlier_one():
    run = small_run()
    run.emit("relay", "prune-in", peer="trainer", topic="t", backoff=60)
    run.now += 20
    run.emit("relay", "prune-in", peer="trainer", topic="t", backoff=60)
    run.now += 1
    run.emit("relay", "graft", peer="trainer", topic="t")
    assert run.rules_broken == ["back-off"]
    assert "21.0 s after a PRUNE between them that asked for 60 s" in run.violations[0].what


def told_and_grafting(kind, seconds, *, node="relay", peer="trainer", backoff=60):
    """Return a run in which a node grafts a peer ``seconds`` after a PRUNE between them."""
    run = small_run()
    run.emit(node, kind, peer=peer, topic="t", backoff=backoff)
    run.now += seconds
    run.emit(node, "graft", peer=peer, topic="t")
    return run


@pytest.mark.parametrize(
    ("kind", "seconds", "broken"),
    [
        ("prune", 59.9, ["back-off"]),
        ("prune", 60, []),
        ("prune-in", 59.9, ["back-off"]),
        ("prune-in", 5, []),
        ("prune-in", 5.1, ["back-off"]),
    ],
)
def test_a_back_off_holds_for_who_prunes_and_who_is_pruned_to_its_end(kind, seconds, broken):
    assert told_and_grafting(kind, seconds).rules_broken == broken


def test_a_prune_that_asks_for_no_back_off_bars_nobody():
    assert told_and_grafting("prune", 10, backoff=0).violations == []


def test_nobody_need_heed_the_prune_of_a_dishonest_router():
    assert told_and_grafting("prune-in", 10, peer="liar").violations == []
    assert told_and_grafting("prune", 10, peer="liar").rules_broken == ["back-off"]


def test_a_dishonest_router_may_graft_when_it_likes():
    assert told_and_grafting("prune-in", 10, node="liar").violations == []

"""Fixed vectors: an implementation that matches these can join a run."""

import json
from pathlib import Path

import pytest

from protocol.consensus.committee import draw
from protocol.consensus.council import Council, PageRules, check_page
from protocol.consensus.era import drawn_seats
from protocol.consensus.pages import PageTree
from protocol.consensus.seals import seal_of
from protocol.core.codec import decode, encode
from protocol.core.crypto import Identity, digest, policy_digest, public_key_from_peer_id, verify
from protocol.core.rng import Rng
from protocol.membership.proof_of_work import is_solved, solve
from protocol.messages import (
    WITNESSES,
    Page,
    RolloutCommit,
    Signed,
    Verdict,
    open_envelope,
    seal,
)
from protocol.rollout.agreement import Agreement
from protocol.rollout.assignment import assign
from protocol.rollout.witness import draw_points
from protocol.run.manifest import RunManifest, decode_manifest
from protocol.run.recipe import EvaluationSection
from roles.environments.held_out import HoldOut
from tests.vectors import core_reference

VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "core.json").read_text())


@pytest.fixture(scope="module")
def manifest() -> RunManifest:
    result = decode_manifest(encode(VECTORS["manifest"]))
    assert isinstance(result, RunManifest)
    return result


@pytest.fixture(scope="module")
def commit(manifest) -> Signed[RolloutCommit]:
    envelope = bytes.fromhex(VECTORS["commit"]["envelope"])
    result = open_envelope(envelope, RolloutCommit, manifest.run_id, verify)
    assert isinstance(result, Signed)
    return result


def identity(index) -> Identity:
    return Identity(bytes.fromhex(VECTORS["identities"][index][0]))


def test_the_vectors_are_what_the_reference_computes():
    assert json.loads(json.dumps(core_reference.vectors())) == VECTORS


@pytest.mark.parametrize(("value", "spelled"), VECTORS["canonical"])
def test_canonical_encoding(value, spelled):
    assert encode(value).hex() == spelled
    assert encode(decode(bytes.fromhex(spelled), bytes_max=100)).hex() == spelled


@pytest.mark.parametrize("text", VECTORS["digests"])
def test_digests(text):
    assert digest(text.encode()).hex() == VECTORS["digests"][text]


@pytest.mark.parametrize(("seed", "public_key", "peer"), VECTORS["identities"])
def test_identities(seed, public_key, peer):
    assert Identity(bytes.fromhex(seed)).peer_id == peer
    assert public_key_from_peer_id(peer).hex() == public_key


def test_run_id(manifest):
    assert manifest.run_id.hex() == VECTORS["run_id"]


def test_envelope(manifest, commit):
    assert commit.digest.hex() == VECTORS["commit"]["digest"]
    assert commit.message.epoch == 7
    assert seal(commit.message, manifest.run_id, identity(0)) == commit


def test_council_beacon_and_committee(manifest, commit):
    expected = VECTORS["council"]
    epoch, seed = expected["epoch"], bytes.fromhex(expected["seed"])
    outputs = {peer: bytes.fromhex(one) for peer, one in expected["outputs"].items()}
    council = Council(b"", tuple(sorted(manifest.genesis.validators)))
    rules = PageRules(manifest.run_id, 60, manifest.council.revealers, 100, 360)
    revealers = council.revealers(seed, epoch, rules.revealers)
    assert list(revealers) == expected["revealers"]
    assert council.proposer(seed, epoch) == expected["proposer"]
    assert rules.alpha(seed, epoch).hex() == expected["alpha"]
    page = Page(
        epoch=epoch,
        council=b"",
        parent=b"",
        seed=seed,
        final_epoch=-1,
        reveals=tuple(bytes(80) if peer in outputs else b"" for peer in revealers),
    )
    signers = {one.peer_id: one for one in map(identity, range(6))}
    signed = seal(page, manifest.run_id, signers[expected["proposer"]])

    def output(peer, alpha, _proof):
        return outputs[peer] if alpha.hex() == expected["alpha"] else None

    checked = check_page(signed, council, rules, output)
    assert checked.beacon.hex() == expected["beacon"]
    tree = PageTree(council.members, rules, verify, output, kept_epochs=9)
    assert tree.root.beacon == seed
    committee = draw(manifest, tree.root.child(checked, rules), commit)
    assert list(committee.ranking) == expected["ranking"]


def test_seats_of_an_era(manifest):
    expected = VECTORS["seats"]
    beacon, genesis = bytes.fromhex(expected["beacon"]), manifest.genesis.validators
    seats_max = manifest.council.seats_max
    drawn = drawn_seats(expected["tokens"], genesis, expected["era"], beacon, seats_max)
    assert drawn == expected["seats"]
    members = tuple(sorted(drawn))
    council = Council(b"", members, tuple(drawn[peer] for peer in members))
    assert council.seats_total == seats_max
    order = council.revealers(beacon, expected["epoch"], seats_max)
    by_proposer = [council.proposer(beacon, expected["epoch"])]
    assert by_proposer == expected["order"][:1]
    assert set(order) == set(expected["order"])
    lot = b"prime-node/proposer" + beacon + expected["epoch"].to_bytes(8, "big")
    assert list(council.ranked(lot)) == expected["order"]


@pytest.mark.parametrize("slot", VECTORS["assignment"])
def test_assignment(manifest, slot):
    sequences = assign(manifest, identity(0).peer_id, int(slot))
    rows = [
        [item.group, item.problem_seed, item.noise_seed, item.length_target] for item in sequences
    ]
    assert rows == VECTORS["assignment"][slot]


def test_evaluation(manifest):
    vectors = VECTORS["evaluation"]
    rule = EvaluationSection(**vectors["rule"])
    evaluated = manifest.model_copy(update={"evaluation": rule})
    assert evaluated.run_id.hex() == vectors["run_id"]
    for slot, expected in vectors["assignment"].items():
        items = assign(evaluated, identity(0).peer_id, int(slot), digest(b"checkpoint"))
        rows = [[one.group, one.problem_seed, one.noise_seed, one.length_target] for one in items]
        assert rows == expected, slot
    split = HoldOut("math/rows", rule.rows_per_held_out_row, 165)
    assert [split.held_out(block) for block in range(8)] == vectors["held_out_rows"]


def test_admission(manifest):
    proof, peer = bytes.fromhex(VECTORS["admission"]["proof"]), identity(0).peer_id
    nonces, epoch = int.from_bytes(proof[8:], "big"), VECTORS["admission"]["epoch"]
    rules, run_id = manifest.admission, manifest.run_id
    assert is_solved(rules, run_id, peer, proof)
    assert solve(rules, run_id, peer, epoch, range(nonces)) is None
    assert solve(rules, run_id, peer, epoch, range(nonces + 1)) == proof


def test_rng():
    rng, expected = Rng(b"seed"), VECTORS["rng"]
    assert rng.bits64() == expected["bits64"]
    assert rng.below(1000) == expected["below_1000"]
    assert rng.uniform() == expected["uniform"]
    assert rng.bytes(5).hex() == expected["bytes_5"]
    assert "".join(rng.child("gossip").shuffled("abcde")) == expected["gossip_shuffled"]


def test_policy_digest():
    tensors = [
        (name, dtype, tuple(shape), bytes.fromhex(body))
        for name, dtype, shape, body in VECTORS["policy"]["tensors"]
    ]
    assert policy_digest(tensors).hex() == VECTORS["policy"]["digest"]


def test_witness_points():
    vectors = VECTORS["witness"]
    lot = bytes.fromhex(vectors["beacon"]) + bytes.fromhex(vectors["commit"])
    points = draw_points(lot, vectors["sequences"], vectors["vocabulary"])
    found = [[index, point.position, point.token, point.seed] for index, point in points]
    assert found == vectors["points"]
    assert len(points) == WITNESSES


@pytest.mark.parametrize(("sigma", "share", "witness_sum", "replays"), VECTORS["agreement"])
def test_limits_of_agreement(manifest, sigma, share, witness_sum, replays):
    rules = manifest.toploc
    replay = rules.honest.replay_mismatches.model_copy(update={"mean": share})
    honest = rules.honest.model_copy(update={"replay_mismatches": replay})
    other = rules.model_copy(update={"gap_sigma": sigma, "honest": honest})
    assert Agreement.of(other) == Agreement(witness_sum, replays)


def test_seal():
    vectors = VECTORS["seal"]
    shown = vectors["verdict"]
    fields = shown | {key: bytes.fromhex(shown[key]) for key in ("commit", "page", "nonce")}
    fields |= dict.fromkeys(("means", "extremes", "witness", "replays"), ())
    seal = seal_of(Verdict(**fields), vectors["signer"])
    assert seal.seal.hex() == vectors["seal"]
    assert seal_of(Verdict(**fields), identity(0).peer_id).seal != seal.seal

import asyncio
import tomllib

import pytest

from node.cli.main import main
from node.founding.recalibration import MeasuredRollout, recalibrated
from node.local.datadir import DataDir
from node.storage.state import SqliteStore
from protocol.core.crypto import digest
from protocol.messages import Certificate
from protocol.rollout.statistics import SCALE, STATISTICS, Extremes
from protocol.run.manifest import sign_manifest
from protocol.run.recipe import ToplocSection
from roles.ports.storage import Put
from tests.worlds.messages import World, identity
from tests.worlds.rounded import OTHER_MODEL, OTHER_PRECISION, ROUNDING, TOKENS, Judged, under

VALIDATORS = ("validator 0", "validator 1", "validator 2")


def measured(thresholds=OTHER_MODEL, workers=4, rounds=8, validators=3, scaled=lambda *_: 1.0):
    """Return the statistics of validators on recorded engines, scaled per pair by ``scaled``."""
    judged, found = Judged(under(thresholds), workers), []
    for round_ in range(rounds):
        for worker in judged.findings:
            commit = digest(f"{worker} {round_}".encode())
            for validator in VALIDATORS[:validators]:
                finding = judged.examined(worker)
                verdict = finding.verdict(commit, bytes(32), bytes(32))
                numbers = (*verdict.means, *verdict.extremes)
                times = scaled(worker, validator)
                values = {
                    name: times * number / SCALE
                    for name, number in zip((*STATISTICS, *Extremes._fields), numbers, strict=True)
                }
                found.append(
                    MeasuredRollout(commit, worker, validator, TOKENS, verdict.chunks, values)
                )
    return found


def test_what_is_proposed_fits_other_rollouts_of_the_same_engines():
    manifest = under(OTHER_MODEL)
    found = recalibrated(manifest, measured(), 1.0)
    assert (found.workers, found.validators, found.rollouts) == (4, 3, 32)
    assert found.tokens == 32 * TOKENS
    assert "honest.exponent_mismatches" in found.changed
    new = Judged(under(found.rules.model_dump()), 4, seed="others").judge(50)
    assert new.reasons == {"accepted"}
    assert "4 workers" in found.rules.measured_on
    for name in STATISTICS:  # no looser than a calibration of these engines
        mean, known = getattr(found.rules.honest, name).mean, ROUNDING["honest"][name]["mean"]
        assert known / 20 <= mean <= 1.5 * known


def test_thresholds_that_fit_stay_as_they_are():
    found = recalibrated(under(ROUNDING), measured(ROUNDING), 1.0)
    assert found.changed == ()
    assert found.rules.honest.model_dump() == ROUNDING["honest"]


POISONED = {
    "a worker": lambda worker, _: 3.0 if worker == "worker 3" else 1.0,
    "a validator": lambda _, validator: 3.0 if validator == "validator 2" else 1.0,
    "a worker, within twice": lambda worker, _: 1.9 if worker == "worker 3" else 1.0,
}


@pytest.mark.parametrize("who", POISONED)
def test_a_minority_moves_no_threshold_beyond_twice_the_honest_one(who):
    manifest = under(OTHER_MODEL)
    honest = recalibrated(manifest, measured(), 1.0)
    found = recalibrated(manifest, measured(scaled=POISONED[who]), 1.0)
    for name in STATISTICS:
        least, mean = (getattr(one.rules.honest, name).mean for one in (honest, found))
        assert mean <= 2.2 * least, name


def test_workers_or_pairs_that_do_not_agree_are_named_in_a_refusal():
    halves = lambda worker, _: 3.0 if worker in ("worker 2", "worker 3") else 1.0  # noqa: E731
    with pytest.raises(ValueError, match=r"2 of 4 workers .* within 2 times the median"):
        recalibrated(under(OTHER_MODEL), measured(scaled=halves), 1.0)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"workers": 1}, "1 workers by 3 validators"),
        ({"validators": 1}, "4 workers by 1 validators"),
        ({"rounds": 3}, "12 measured rollouts"),
    ],
)
def test_too_little_is_said(changes, words):
    with pytest.raises(ValueError, match=words):
        recalibrated(under(OTHER_MODEL), measured(**changes), 1.0)


def test_what_the_clip_has_cut_off_was_not_measured():
    with pytest.raises(ValueError, match="calibrate on a machine"):
        recalibrated(under(OTHER_PRECISION), measured(OTHER_PRECISION), 1.0)


def test_no_threshold_is_proposed_for_other_weights():
    unrelated = [
        one._replace(values=one.values | {"exponent_mismatches_max": 127.0}) for one in measured()
    ]
    with pytest.raises(ValueError, match="no threshold helps"):
        recalibrated(under(OTHER_MODEL), unrelated, 1.0)


# The command


def swarm(path, *, rounds=8, liar=False):
    """Fill the data directory of a node that has seen two workers; return its world."""
    world = World(under(OTHER_MODEL))
    judged, envelopes = Judged(world.manifest, 2), []
    for worker, peer in zip(judged.findings, world.workers, strict=False):
        for commit in world.chain(peer, rounds, tokens=TOKENS):
            committee = world.committee(commit)
            verdicts = [
                world.sealed(
                    judged.examined(worker).verdict(
                        commit.digest, committee.page.digest, bytes(32)
                    ),
                    world.by_peer[one],
                )
                for one in committee.escalated[: committee.quorum]
            ]
            certificate = Certificate(
                commit=commit.digest,
                page=committee.page.digest,
                escalated=True,
                accepted=False,
                verdicts=tuple(one.envelope for one in verdicts),
            )
            signed = world.sealed(certificate, world.validators[0])
            envelopes += [commit.envelope, signed.envelope]
    if liar:
        commit = world.commit(world.workers[2], tokens=TOKENS)
        envelopes += [
            commit.envelope,
            world.certificate(commit, accepted=False, escalated=True).envelope,
        ]
    datadir = DataDir(path)
    path.mkdir()
    datadir.run.write_bytes(sign_manifest(world.manifest, identity("creator")).encoded())
    store = SqliteStore(datadir.state)
    puts = [Put("messages", n.to_bytes(8, "big"), one) for n, one in enumerate(envelopes)]
    asyncio.run(store.commit([*puts, Put("messages", b"\xff" * 8, b"damaged")]))
    return store


def test_the_command_prints_a_section_from_the_directory_of_a_node_that_runs(tmp_path, capsys):
    store = swarm(tmp_path / "node", liar=True)
    assert main(["run", "recalibrate", "--data-dir", str(tmp_path / "node")]) == 0
    text = capsys.readouterr().out
    store.close()
    assert text.startswith("# From 16 rollouts")
    assert "of 2 workers" in text
    section = ToplocSection.model_validate(tomllib.loads(text)["toploc"])
    old = ToplocSection.model_validate(OTHER_MODEL).honest
    assert section.honest.exponent_mismatches.mean > old.exponent_mismatches.mean


def test_the_command_says_why_there_is_nothing_to_propose(tmp_path, capsys):
    swarm(tmp_path / "node", rounds=2).close()
    assert main(["run", "recalibrate", "--data-dir", str(tmp_path / "node"), "--json"]) == 78
    assert "4 measured rollouts" in capsys.readouterr().err
    assert main(["run", "recalibrate", "--data-dir", str(tmp_path / "none")]) == 2
    assert "belongs to no run" in capsys.readouterr().err

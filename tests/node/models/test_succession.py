"""Founding of a run that succeeds another one, from the data directory of a node."""

import json

import pytest

from node.cli.main import main
from node.local.datadir import DataDir, load_identity
from node.local.errors import ExitCode, NodeError
from node.local.run_pin import load_run
from node.models.succession import QUIET_PERIODS, inheritance
from protocol.core.crypto import Identity
from protocol.messages import PageVote
from tests.worlds.held_runs import FINAL_EPOCH, TEXT, held_run

REASONING = {"name": "reasoning-gym/basic_arithmetic"}
"""Text task without rows."""

FINAL = 2
OTHER = Identity(b"\x07" * 32).peer_id


@pytest.fixture(scope="module")
def held(tmp_path_factory):
    """Node of a text run whose version 2 is final; tests do not change it."""
    directory = tmp_path_factory.mktemp("run")
    return held_run(directory, final=FINAL, environment=TEXT | REASONING)


def succeed(root, out, *options):
    arguments = ["run", "succeed", "--data-dir", root, "--out", out, "--no-trial", *options]
    return main([str(one) for one in arguments])


def show(run, *options):
    return main([str(one) for one in ("run", "show", run / "run.toml", *options)])


def error_of(capsys):
    lines = capsys.readouterr().err.strip().splitlines()
    assert lines[-1].startswith("prime-node: error: ")
    return lines[-1].removeprefix("prime-node: error: ")


@pytest.fixture(scope="module")
def founded(held, tmp_path_factory):
    """Directory of a successor with an existing key."""
    out = tmp_path_factory.mktemp("next") / "run"
    assert succeed(held.root, out, "--validators", "2", "--validator", OTHER) == 0
    return out


def test_a_successor_begins_with_the_final_version_and_the_rules_of_the_old_run(held, founded):
    manifest, old = load_run(founded / "run.toml").manifest, held.world.manifest
    told = manifest.genesis.predecessor
    assert told.run_id == old.run_id.hex()
    assert (told.page, told.epoch) == (held.world.book.page(FINAL_EPOCH).digest.hex(), FINAL_EPOCH)
    assert (told.version, told.rollouts, told.is_complete) == (FINAL, 3, True)
    assert told.tokens == 10 + 10 + 7
    version = held.run.version(FINAL)
    assert manifest.genesis_policy == version.digest
    assert (founded / "genesis.safetensors").read_bytes() == version.path.read_bytes()
    kept = old.model_dump(exclude={"genesis", "grpo"})
    assert manifest.model_dump(exclude={"genesis", "grpo"}) == kept
    assert manifest.grpo == old.grpo.model_copy(update={"steps": old.grpo.steps - FINAL})
    assert manifest.genesis.files == old.genesis.files
    assert manifest.genesis.created_at > old.genesis.created_at


def test_a_successor_has_keys_and_directories_of_its_own(held, founded):
    genesis, old = load_run(founded / "run.toml").manifest.genesis, held.world.manifest.genesis
    made = [load_identity(DataDir(founded / f"validator-{n}").identity).peer_id for n in (1, 2)]
    assert list(genesis.validators) == [*made, OTHER]
    assert not {genesis.creator, *genesis.trainers} & {old.creator, *old.trainers}
    assert genesis.creator == load_identity(founded / "creator.key").peer_id
    trainer, bundle = DataDir(founded / "trainer-1"), held.run.run_file("bundle")
    assert trainer.genesis.read_bytes() == (founded / "genesis.safetensors").read_bytes()
    for member in (trainer, DataDir(founded / "validator-2")):
        assert (member.task / "bundle").read_bytes() == bundle.read_bytes()


def test_a_successor_says_what_it_succeeds_and_a_member_of_the_old_run_confirms_it(
    held, founded, capsys
):
    assert show(founded, "--check", held.root) == 0
    printed = capsys.readouterr().out
    words = " ".join(printed.split())
    page = held.world.book.page(FINAL_EPOCH).digest.hex()
    assert f"succeeds run {held.world.run_id.hex()}" in words
    assert f"page {page} (epoch {FINAL_EPOCH}), version {FINAL}" in words
    assert "which had certified 3 rollouts of 27 tokens" in words
    lines = [line.split(":")[0].split() for line in printed.splitlines()[-6:]]
    assert [line[0] for line in lines if line[-1] != "creator"] == ["confirmed"] * 5
    assert "unknown here  creator: another key created it" in printed


def test_the_check_is_in_the_json_of_the_run(held, founded, capsys):
    assert show(founded, "--check", held.root, "--json") == 0
    values = json.loads(capsys.readouterr().out)
    assert {one["subject"]: one["holds"] for one in values["check"]} == {
        "run": True,
        "creator": None,
        "page": True,
        "newest page": True,
        "version": True,
        "totals": True,
    }
    assert show(founded, "--json") == 0
    assert "check" not in json.loads(capsys.readouterr().out)


def test_a_node_that_knows_later_pages_contradicts_a_successor(held, tmp_path, capsys):
    later = held_run(tmp_path / "other", final=FINAL)
    assert succeed(later.root, tmp_path / "run", "--json") == 0
    capsys.readouterr()
    assert show(tmp_path / "run", "--check", held.root) == 78
    assert error_of(capsys).endswith(f"contradicts the pages in {held.root}: run")


def test_a_successor_may_train_more_versions_and_be_signed_by_a_known_key(held, tmp_path, capsys):
    key, out = tmp_path / "mine.key", tmp_path / "run"
    assert succeed(held.root, out, "--steps", "90", "--creator-key", key, "--json") == 0
    values = json.loads(capsys.readouterr().out)["manifest"]
    assert values["grpo"]["steps"] == 90
    assert values["genesis"]["creator"] == load_identity(key).peer_id
    assert values["genesis"]["predecessor"]["version"] == FINAL


def test_a_dry_run_writes_nothing(held, tmp_path, capsys):
    assert succeed(held.root, tmp_path / "run", "--dry-run") == 0
    printed = capsys.readouterr().out
    assert f"It succeeds run {held.world.run_id.hex()[:16]}…" in printed
    assert list(tmp_path.iterdir()) == []


def test_a_council_with_a_recent_final_page_is_not_succeeded_unless_forced(held):
    manifest, run = held.world.manifest, held.run
    quiet = QUIET_PERIODS * manifest.council.recovery_epochs
    gone = manifest.epoch_start(FINAL_EPOCH + quiet)
    assert inheritance(run, gone).version.version == FINAL
    with pytest.raises(NodeError) as caught:
        inheritance(run, gone - 1)
    assert caught.value.exit_code is ExitCode.RETRY
    assert f"{quiet - 1} epochs old" in caught.value.message
    assert inheritance(run, gone - 1, force=True).version.version == FINAL


def late_commit(world, epoch):
    return world.commit(world.workers[2], epoch=epoch)


def late_vote(world, epoch):
    page = PageVote(epoch=epoch, council=b"", page=bytes(32), parent=bytes(32))
    return world.sealed(page, world.validators[0])


@pytest.mark.parametrize("message", [late_commit, late_vote])
def test_a_node_that_stopped_before_the_council_was_gone_warns(held, message):
    world, run = held.world, held.run
    later = FINAL_EPOCH + world.manifest.council.recovery_epochs
    gone = world.manifest.epoch_start(later * 10)
    for epoch, warns in ((None, True), (later - 1, True), (later, False)):
        if epoch is not None:
            run.replica.restore(message(world, epoch).envelope)
        warning = inheritance(run, gone).warning
        assert bool(warning) == warns
        if epoch is not None and warns:
            assert f"after epoch {epoch}, and its newest final page is of epoch 12" in warning


def test_the_warning_is_printed(held, tmp_path, capsys):
    assert succeed(held.root, tmp_path / "run", "--dry-run") == 0
    assert "warning: this node received nothing after epoch 13" in capsys.readouterr().err
    assert succeed(held.root, tmp_path / "run", "--dry-run", "--json") == 0
    assert json.loads(capsys.readouterr().out)["warning"].startswith("this node received nothing")


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (["--validators", "1"], 78, "1 validators cannot certify anything"),
        (["--trainers", "0"], 78, "trainers"),
        (["--trainer", "nobody"], 78, "'nobody' is not an Ed25519 peer id"),
        (["--data-dir", "{out}"], 78, "belongs to no run"),
        (["--out", "{full}"], 2, "is not empty"),
    ],
)
def test_mistakes_are_one_line_and_leave_nothing(held, tmp_path, capsys, options, code, said):
    full, out = tmp_path / "full", tmp_path / "run"
    full.mkdir()
    (full / "file").touch()
    options = [option.format(full=full, out=out) for option in options]
    assert succeed(held.root, out, *options) == code
    assert said in error_of(capsys)
    assert [path.name for path in tmp_path.iterdir()] == ["full"]


@pytest.fixture
def refused(tmp_path, capsys):
    """Return a function that makes a run, lets it be succeeded, and returns the error."""

    def error(change=lambda _: None, **run):
        held = held_run(tmp_path / "old", **run)
        change(held)
        assert succeed(held.root, tmp_path / "run") == 78
        assert not (tmp_path / "run").exists()
        return error_of(capsys)

    return error


def test_a_run_without_a_final_page_is_not_succeeded(refused):
    assert "no page of the run is final here; start its node until" in refused()


def test_a_run_whose_first_version_is_not_final_is_not_succeeded(refused):
    assert "no final page names a version; found a run from the same model" in refused(final=-1)


def test_the_weights_of_the_final_version_must_be_here(refused):
    assert "does not hold the weights of the final version 1" in refused(final=1)


def test_other_weights_are_refused(refused):
    def exchange(held):
        path = DataDir(held.root).weights / "v2.safetensors"
        path.unlink()
        path.hardlink_to(held.policies[3])

    error = refused(exchange, final=2)
    assert "the weights of version 2 cannot be used" in error
    assert "does not hold the policy" in error


def test_a_finished_run_is_succeeded_with_more_steps_only(refused):
    error = refused(final=3, grpo={"steps": 3})
    assert "the run has made all its 3 versions; add --steps" in error

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from node.cli.main import main
from node.founding.found import manifest_toml
from node.local.datadir import DataDir, locked
from node.local.run_pin import load_run
from node.models.card import card_of, licence_of
from node.models.held import ranges
from node.storage.state import SqliteStore
from roles.engines.files import atomic_write
from roles.ports.storage import Put
from tests.worlds.held_runs import TEXT, held_run

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def held(tmp_path_factory):
    """Node of a text run in bf16; tests do not change it."""
    rules = {"environment": TEXT | REASONING}
    return held_run(tmp_path_factory.mktemp("run"), dtype="bf16", final=2, **rules)


REASONING = {"name": "reasoning-gym/basic_arithmetic"}
"""Text task without rows."""


def export(held, out, *options):
    arguments = ["export", "--data-dir", held.root, "--out", out, *options]
    return main([str(one) for one in arguments])


def refused(capsys):
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1 and lines[0].startswith("prime-node: error: ")
    return lines[0].removeprefix("prime-node: error: ")


def everything(directory):
    """Return all names below a directory, except SQLite's journals."""
    names = (path.relative_to(directory).as_posix() for path in directory.rglob("*"))
    return sorted(name for name in names if not name.startswith("state.sqlite-"))


@pytest.mark.parametrize(("options", "version"), [((), 3), (("--version", "2"), 2)])
def test_a_held_version_is_loaded_bit_for_bit(held, tmp_path, capsys, options, version):
    before = everything(held.root)
    assert export(held, tmp_path / "out", *options, "--json") == 0
    made = json.loads(capsys.readouterr().out)
    policy = load_file(held.policies[version])
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype="auto")
    found = dict(model.named_parameters())
    assert found.keys() == policy.keys()
    assert all(torch.equal(found[name], policy[name]) for name in policy)
    assert (made["version"], made["has_tokenizer"]) == (version, True)
    assert made["total_bytes"] == sum(2 * one.numel() for one in policy.values())
    assert everything(held.root) == before
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_tokenizer_template_licence_and_manifest_come_along(held, tmp_path):
    assert export(held, tmp_path / "out") == 0
    out, base = tmp_path / "out", held.base
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "LICENSE"):
        assert (out / name).read_bytes() == (base / name).read_bytes()
    chat = [{"role": "user", "content": "Hello"}]
    asked = [AutoTokenizer.from_pretrained(one).apply_chat_template(chat, tokenize=False)
             for one in (out, base)]  # fmt: skip
    assert asked[0] == asked[1]
    assert load_run(out / "run.toml").manifest.run_id == held.world.run_id
    assert (out / "run.toml").read_text() == manifest_toml(held.run.signed)


def test_the_card_has_the_run_its_rewards_and_contributors(held, tmp_path):
    assert export(held, tmp_path / "out", "--version", "2") == 0
    card = (tmp_path / "out" / "README.md").read_text()
    manifest, version = held.world.manifest, held.run.version(2)
    facts = {"run id": manifest.run_id.hex(), "version": "2 of 50", "run": manifest.name}
    facts |= {"policy digest (BLAKE3)": version.digest.hex(), "base model": "base"}
    facts |= {"made": "2023-11-14 22:15 UTC", "creator of the run": manifest.genesis.creator}
    for name, value in facts.items():
        assert f"| {name} | {value} |" in card
    assert 'license: "apache-2.0"' in card and "license: mit" not in card
    first, second = (world.peer_id for world in held.world.workers[:2])
    assert f"| {first} | 2 | 20 |\n| {second} | 1 | 7 |" in card
    assert "| 1 | 0.250 |\n| 2 | 0.500 |" in card and "| 3 | 0.750 |" not in card


def test_a_card_keeps_what_a_name_holds_in_its_place(held):
    model = held.world.manifest.model.model_copy(update={"name": 'a|b "c"\n---\n<script>'})
    run = held.run
    changed = run.manifest.model_copy(update={"model": model})
    run.signed = type(run.signed)(changed, run.signed.signature)
    card = card_of(run, run.version(3), {})
    assert '| base model | a\\|b "c" --- &lt;script> |' in card
    assert card.count("\n---\n") == 1


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("---\nlicense: mit\n---\n", {"license": "mit"}),
        (
            "---\r\nlicense: other\r\nlicense_name: 'x y'\r\n---\r\ntext",
            {"license": "other", "license_name": "x y"},
        ),
        ("---\nlicense:\n---\n", {}),
        ("# Title\nlicense: mit\n", {}),
        ("---\nlicense: mit\n", {}),
        ("", {}),
    ],
)
def test_the_licence_is_that_of_the_front_matter(text, found):
    assert licence_of({"README.md": text.encode()}) == found
    assert licence_of({}) == {}


def test_many_rewards_are_thinned_and_the_last_one_stays(held, monkeypatch):
    run = held.run
    monkeypatch.setattr(run, "rewards", lambda _: [(n, n / 1000) for n in range(1, 402)])
    rows = [line for line in card_of(run, run.version(3), {}).splitlines() if "| 0." in line]
    assert len(rows) <= 40 and rows[-1] == "| 401 | 0.401 |"


def test_a_running_node_is_read_beside(tmp_path):
    """Its directory is locked, and its newest version is only in the database's journal."""
    held = held_run(tmp_path / "run", versions=(3,))
    versions = [one.manifest for one in held.run._ledger.chain.checkpoints]
    newest = held.world.checkpoint(versions[-1], policy=versions[-1].message.policy)
    store = SqliteStore(held.root / "state.sqlite")
    with locked(DataDir(held.root)):
        asyncio.run(store.commit([Put("messages", (99).to_bytes(8, "big"), newest.envelope)]))
        (held.root / "weights" / "v4.safetensors").hardlink_to(held.policies[3])
        assert export(held, tmp_path / "out") == 0
    store.close()
    assert "| version | 4 of 50 |" in (tmp_path / "out" / "README.md").read_text()


# Errors


def test_a_version_that_is_not_held_is_refused_with_those_that_are(held, tmp_path, capsys):
    assert export(held, tmp_path / "out", "--version", "1") == 78
    assert refused(capsys) == (
        f"version 1 is not held in {held.root}, only 0, 2 to 3; take one of these, or give the "
        "--data-dir of a node that holds it"
    )
    assert list(tmp_path.iterdir()) == []


def test_other_weights_than_the_signed_ones_are_refused(tmp_path, capsys):
    held = held_run(tmp_path / "run")
    path = held.root / "weights" / "v3.safetensors"
    path.unlink()
    path.hardlink_to(held.policies[2])
    assert export(held, tmp_path / "out") == 78
    found, signed = (held.run.version(n).digest.hex() for n in (2, 3))
    assert refused(capsys) == (
        f"version 3 cannot be exported: {path} holds the policy {found}, not {signed}; delete that "
        "file and start the node, which fetches it again, or take another version"
    )
    path.unlink()
    path.write_bytes(held.policies[3].read_bytes()[:-1])
    assert export(held, tmp_path / "out") == 78
    assert "not a readable file of tensors" in refused(capsys)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


@pytest.mark.parametrize("name", ["full", "file"])
def test_a_directory_that_is_there_is_refused(held, tmp_path, capsys, name):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "one").touch()
    (tmp_path / "file").touch()
    assert export(held, tmp_path / name) == 2
    assert refused(capsys) == f"{tmp_path / name} exists; --out takes a new directory"


def test_a_directory_without_a_run_is_refused(tmp_path, capsys):
    for root in (tmp_path, tmp_path / "nothing", ROOT / "README.md"):
        arguments = ["export", "--data-dir", str(root), "--out", str(tmp_path / "out")]
        assert main(arguments) == 78
        assert refused(capsys) == (
            f"{root} belongs to no run; give the --data-dir of a node, or a directory that "
            "prime-node run create made"
        )


def test_a_node_without_a_version_is_refused(tmp_path, capsys):
    held = held_run(tmp_path / "run", versions=())
    assert export(held, tmp_path / "out") == 78
    assert "holds no version yet; start its node" in refused(capsys)


def test_files_that_the_creator_did_not_sign_are_refused(tmp_path, capsys):
    held = held_run(tmp_path / "run", environment=TEXT | REASONING)
    bundle = held.root / "task" / "bundle"
    bundle.write_bytes(bundle.read_bytes() + b" ")
    assert export(held, tmp_path / "out") == 78
    assert "is not the bundle that the run's creator signed" in refused(capsys)
    bundle.unlink()
    assert export(held, tmp_path / "out") == 78
    assert "the run's bundle is not in" in refused(capsys)


def test_a_full_disk_leaves_nothing(held, tmp_path, capsys, monkeypatch):
    def full(_path):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(atomic_write, "_sync", full)
    assert export(held, tmp_path / "out") == 73
    assert "No space left on device; free some or take another --out" in refused(capsys)
    assert list(tmp_path.iterdir()) == []


def test_a_process_that_is_killed_leaves_no_directory(held, tmp_path):
    """Its staged files stay beside ``out`` under a hidden name, and the next try succeeds."""
    code = (
        "import os, node.models.export as one\n"
        "one.card_of = lambda *_: os._exit(9)\n"
        "from node.cli.main import main\n"
        f"main(['export', '--data-dir', {str(held.root)!r}, '--out', {str(tmp_path / 'out')!r}])"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, check=False, timeout=300)
    assert done.returncode == 9
    [staged] = tmp_path.iterdir()
    assert staged.name.startswith(".out-")
    assert export(held, tmp_path / "out") == 0


# Other directories


def test_a_task_over_characters_is_exported_without_a_tokenizer(tmp_path, capsys):
    held = held_run(tmp_path / "run")
    assert export(held, tmp_path / "out") == 0
    assert "note: the task is character-level" in capsys.readouterr().err
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {"config.json", "generation_config.json", "model.safetensors", "README.md",
                     "run.toml"}  # fmt: skip
    policy = load_file(held.policies[3])
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert all(torch.equal(one, policy[name]) for name, one in model.named_parameters())


def test_what_run_create_made_holds_version_0(held, tmp_path, capsys):
    run = tmp_path / "run"
    run.mkdir()
    (run / "run.toml").write_text(manifest_toml(held.run.signed))
    (run / "genesis.safetensors").hardlink_to(held.policies[0])
    (run / "task").symlink_to(held.root / "task")
    assert main(["export", "--data-dir", str(run), "--out", str(tmp_path / "out"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["version"] == 0


@pytest.mark.parametrize(
    ("numbers", "words"),
    [([], ""), ([0], "0"), ([3, 2, 0, 7, 8, 9], "0, 2 to 3, 7 to 9"), ([5, 7], "5, 7")],
)
def test_versions_in_words(numbers, words):
    assert ranges(dict.fromkeys(numbers)) == words

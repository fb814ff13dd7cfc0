import json
import shlex
from pathlib import Path

from node.cli.main import main
from node.testnet.command import _cleaned_up
from node.testnet.plan import SwarmLayout
from node.testnet.trained import TrainedModel, export_last, usage_lines
from tests.worlds.held_runs import held_run


def test_the_newest_version_of_any_node_is_exported(tmp_path, capsys):
    old = held_run(tmp_path / "old", versions=(0, 2))
    new = held_run(tmp_path / "new", versions=(1, 3))
    empty = tmp_path / "empty"
    empty.mkdir()
    out = tmp_path / "swarm" / "model"
    made = export_last([empty, old.root, new.root], out)
    assert made == TrainedModel(3, out, new.root)
    assert (out / "model.safetensors").exists()
    assert export_last([empty], tmp_path / "none") is None
    assert not (tmp_path / "none").exists()


def test_each_line_of_a_kept_testnet_is_a_command_that_works(tmp_path, capsys):
    held = held_run(tmp_path / "a swarm")
    out = tmp_path / "a swarm" / "model"
    model = export_last([held.root], out)
    first, *lines = usage_lines(model, nodes_stay=True)
    assert first == f"version 3 is in {shlex.quote(str(out))}, a Hugging Face directory"
    commands = [shlex.split(line.partition("prime-node ")[2]) for line in lines]
    assert [one[0] for one in commands] == ["chat", "eval", "export", "run"]
    options = (["-p", "1+1="], ["--problems", "2", "--json"], [])
    places = {"N": "2", "DIR": str(tmp_path / "other")}
    for command, more in zip(commands, options, strict=False):
        assert main([*(places.get(one, one) for one in command), *more]) == 0
    assert '"version": 0' in capsys.readouterr().out
    assert (tmp_path / "other" / "model.safetensors").exists()


def test_a_testnet_without_its_nodes_compares_nothing():
    lines = usage_lines(TrainedModel(7, Path("/t/model"), Path("/t/node")), nodes_stay=False)
    assert "  evaluate  prime-node eval --model /t/model" in lines
    assert not any("/t/node" in line for line in lines)


def swarm(tmp_path, *, with_model):
    layout = SwarmLayout(tmp_path / "swarm")
    for path in (layout.node("trainer-1"), layout.trained):
        path.mkdir(parents=True)
        (path / "file").touch()
    layout.report.write_text(json.dumps({}))
    if not with_model:
        (layout.trained / "file").unlink()
        layout.trained.rmdir()
    return layout


def names(layout):
    return {path.name for path in layout.directory.iterdir()} if layout.directory.exists() else None


def test_a_temporary_testnet_leaves_its_model_alone(tmp_path):
    layout = swarm(tmp_path, with_model=True)
    with _cleaned_up(layout, keep=False, temporary=True):
        pass
    assert names(layout) == {"model"} and (layout.trained / "file").exists()


def test_a_temporary_testnet_without_a_model_leaves_nothing(tmp_path):
    layout = swarm(tmp_path, with_model=False)
    with _cleaned_up(layout, keep=False, temporary=True):
        pass
    assert names(layout) is None


def test_a_directory_of_ones_own_keeps_report_and_model(tmp_path):
    layout = swarm(tmp_path, with_model=True)
    with _cleaned_up(layout, keep=False, temporary=False):
        pass
    assert names(layout) == {"model", "report.json"}

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from node.local.datadir import DataDir, load_identity
from node.local.errors import NodeError
from node.testnet.child import dishonest
from node.testnet.genesis import FirstPolicy, create_members, found_run, recipe_for, require_task
from node.testnet.picture import draw_reward
from node.testnet.plan import CHEATER_KINDS, LAZY_KINDS, Options, SwarmLayout
from protocol.core.crypto import verify
from protocol.core.types import Role
from protocol.rollout.evaluation import EvaluationPoint
from protocol.run.manifest import load_signed_manifest
from protocol.run.toml import load_recipe
from roles.environments import registry
from tests.worlds.text import needs_jail


def test_a_run_is_founded_on_the_keys_of_its_nodes(tmp_path):
    options = Options(tmp_path, trainers=2, steps=7, environment="sorting")
    layout = SwarmLayout(tmp_path)
    plans = create_members(options, layout)
    layout.genesis_policy.parent.mkdir()
    layout.genesis_policy.write_bytes(b"weights")
    recipe = recipe_for(options)
    signed = found_run(
        recipe, FirstPolicy(recipe.model, recipe.environment, "0f" * 32, {}), plans, layout
    )

    manifest = load_signed_manifest(layout.manifest.read_text(), verify).manifest
    assert manifest == signed.manifest
    assert (manifest.environment.name, manifest.grpo.steps) == ("sorting", 7)
    assert load_recipe(layout.recipe.read_text()) == recipe_for(options)
    for plan in plans:
        assert load_identity(DataDir(plan.directory).identity).peer_id == plan.peer_id
        assert manifest.is_trainer(plan.peer_id) is (plan.role is Role.TRAINER)
        assert manifest.is_validator(plan.peer_id) is (plan.role is Role.VALIDATOR)
        assert DataDir(plan.directory).genesis.exists() is (plan.role is Role.TRAINER)


def test_the_default_recipe_is_the_checked_in_one_but_for_its_steps(tmp_path):
    recipe = recipe_for(Options(tmp_path, steps=9))
    assert recipe.environment.name == "arithmetic"
    assert recipe.grpo == replace_steps(recipe_for(Options(tmp_path)), 9)


def test_the_trainers_of_a_testnet_train_at_the_same_time_if_asked_to(tmp_path):
    assert recipe_for(Options(tmp_path, trainers=3)).grpo.outer is None
    outer = recipe_for(Options(tmp_path, trainers=3, diloco=True)).grpo.outer
    assert (outer.trainers, outer.inner_steps) == (3, 2)
    assert recipe_for(Options(tmp_path, trainers=9, diloco=True)).grpo.outer.trainers == 8


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("rollouts_per_step = 4 ", "rollouts_per_step = 43 ", "a round takes at most 256 rollouts"),
        ("adam_betas = [0.9, 0.95]", "adam_betas = [0.9, 0.8]", "no bound on the movement"),
    ],
)
def test_a_recipe_that_several_trainers_cannot_train_is_refused_first(tmp_path, old, new, what):
    recipe = tmp_path / "own.toml"
    text = (Path(__file__).parents[3] / "configs/runs/testnet.toml").read_text()
    assert old in text
    recipe.write_text(text.replace(old, new))
    with pytest.raises(NodeError, match=f"^--diloco: .*{what}"):
        recipe_for(Options(tmp_path, trainers=3, diloco=True, recipe=str(recipe)))


def replace_steps(recipe, steps):
    return recipe.grpo.model_copy(update={"steps": steps})


@needs_jail
def test_a_task_that_cannot_run_here_is_refused_before_the_swarm_starts(tmp_path, monkeypatch):
    recipe = recipe_for(Options(tmp_path, recipe="tiny-qwen3-bpe"))
    require_task(recipe)
    bare = tmp_path / "bin"
    bare.mkdir()
    for tool in ("nice", "prlimit", "setarch", "setpriv", "sh", "timeout", "unshare"):
        (bare / tool).symlink_to(shutil.which(tool))
    with monkeypatch.context() as without:
        without.setenv("PATH", str(bare))
        with pytest.raises(NodeError, match=r"bwrap not installed; .*apt-get install bubblewrap"):
            require_task(recipe)
        require_task(recipe_for(Options(tmp_path)))
    monkeypatch.setitem(registry._UNDERSTOOD, "reasoning-gym", "0.0.0")
    with pytest.raises(NodeError, match=r"scores with 0\.0\.0; .*pip install '\.\[envs\]'"):
        require_task(recipe)


@pytest.mark.parametrize(
    ("arguments", "installed"), [("", ".venv/runtime"), ("--recipe tiny-qwen3-bpe", ".venv/envs")]
)
def test_make_installs_what_a_recipe_needs(arguments, installed):
    done = subprocess.run(
        ["make", "--dry-run", "--always-make", "testnet", f"ARGS={arguments}"],
        cwd=Path(__file__).parents[3], capture_output=True, text=True, check=True,
    )  # fmt: skip
    *_, mark, last = done.stdout.splitlines()
    assert (mark, last) == (f"touch {installed}", f".venv/bin/prime-node testnet {arguments}")


def test_every_kind_of_cheater_is_registered():
    assert all(callable(dishonest(kind)) for kind in (*CHEATER_KINDS, *LAZY_KINDS))


def test_options_can_be_varied(tmp_path):
    options = Options(tmp_path)
    assert len(list(replace(options, inference=1).members())) == 6


def test_the_reward_picture_is_drawn_with_and_without_versions(tmp_path):
    point = EvaluationPoint(0, 8, 64, 0.25, 0.125, 0.5, 0.25, 0.125, 0.5)
    draw_reward([(1, 0.3), (2, 0.4)], [point], 0.9, "arithmetic", tmp_path / "a.png")
    draw_reward([], [], None, "arithmetic", tmp_path / "b.png")
    for name in ("a.png", "b.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")

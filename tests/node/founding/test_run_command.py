import json
from dataclasses import replace
from importlib.metadata import version

import pytest
import tomlkit

from node.cli.main import main
from node.founding.needs import needs_of
from node.founding.recipes import read_recipe
from node.local.datadir import DataDir, load_identity
from node.storage.sharded_files import index_of
from protocol.core.crypto import Identity, digest, verify
from protocol.run.manifest import load_signed_manifest
from protocol.run.model_files import decode_bundle
from protocol.run.toml import load_recipe
from protocol.shardcast.index import encode
from roles.engines.bootstrap.huggingface_import import import_pretrained
from roles.engines.calibration.calibrate import kept
from roles.engines.calibration.honest import TimeBudget
from roles.engines.calibration.measurement import MeasuredEngine, MeasurementFile
from roles.engines.calibration.proposal import propose
from roles.engines.subprocess.client import ChildVerification
from roles.environments.jailed.installed import package_digest
from roles.environments.runtime import PACKAGES
from tests.roles.engines.calibration.recordings import drawn
from tests.roles.engines.huggingface import write_directory
from tests.worlds import runtimes
from tests.worlds.messages import RECIPE
from tests.worlds.packages import SUMS, install, needs_verifiers
from tests.worlds.text import (
    byte_tokenizer,
    exchange,
    needs_jail,
    program_row,
    write_rows,
)

OTHER = Identity(b"\x07" * 32).peer_id


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_directory(tmp_path_factory.mktemp("models") / "tiny")


UNMEASURED = ("--uncalibrated", "--no-trial")


def create(model, out, *options, recipe=RECIPE, computed=UNMEASURED):
    arguments = ["run", "create", "--model", model, "--recipe", recipe, "--out", out]
    return main([str(argument) for argument in (*arguments, *computed, *options)])


def values_of(capsys):
    return json.loads(capsys.readouterr().out)


def test_a_run_is_founded_whole(model, tmp_path, capsys):
    out = tmp_path / "some" / "where"
    assert create(model, out, "--validators", "2", "--validator", OTHER, "--json") == 0
    values = values_of(capsys)
    signed = load_signed_manifest((out / "run.toml").read_text(), verify)
    manifest = signed.manifest
    assert manifest.run_id.hex() == values["run_id"]
    assert manifest.model.name == "tiny"
    assert manifest.genesis.creator == load_identity(out / "creator.key").peer_id
    made = [load_identity(DataDir(out / f"validator-{n}").identity).peer_id for n in (1, 2)]
    assert list(manifest.genesis.validators) == [*made, OTHER]
    trainer = DataDir(out / "trainer-1")
    assert manifest.genesis.trainers == (load_identity(trainer.identity).peer_id,)
    assert trainer.genesis.read_bytes() == (out / "genesis.safetensors").read_bytes()
    assert (out.stat().st_mode & 0o777, len(list(tmp_path.iterdir()))) == (0o700, 1)
    assert main(["run", "show", str(out / "run.toml"), "--json"]) == 0
    shown = values_of(capsys)
    assert shown == {key: values[key] for key in ("run_id", "manifest", "needs")}


def test_the_weights_are_those_of_the_directory(model, tmp_path):
    assert create(model, tmp_path / "run") == 0
    manifest = load_signed_manifest((tmp_path / "run" / "run.toml").read_text(), verify).manifest
    assert import_pretrained(model, tmp_path / "own", "fp32") == manifest.genesis_policy


def test_a_dry_run_keeps_nothing_and_shows_everything(model, tmp_path, capsys):
    assert create(model, tmp_path / "run", "--dry-run") == 0
    printed = capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []
    for word in ("arithmetic", "inference", "validator", "trainer", "at 50 TFLOP/s"):
        assert word in printed
    assert "Start a trainer" not in printed


def test_a_key_of_the_creator_signs(model, tmp_path):
    key = tmp_path / "mine.key"
    assert create(model, tmp_path / "one", "--creator-key", key) == 0
    assert create(model, tmp_path / "two", "--creator-key", key) == 0
    found = [load_signed_manifest((tmp_path / run / "run.toml").read_text(), verify).manifest
             for run in ("one", "two")]  # fmt: skip
    assert {one.genesis.creator for one in found} == {load_identity(key).peer_id}
    assert not (tmp_path / "two" / "creator.key").exists()


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (["--validators", "1"], 78, "1 validators cannot certify anything"),
        (["--trainers", "0"], 78, "trainers"),
        (["--validator", "nobody"], 78, "'nobody' is not an Ed25519 peer id"),
        (["--recipe", "/nowhere.toml"], 78, "/nowhere.toml: No such file"),
        (["--model", "/nowhere"], 78, "/nowhere: no such directory or GGUF file"),
        (["--out", "{full}"], 2, "is not empty"),
    ],
)
def test_mistakes_are_one_line_and_leave_nothing(model, tmp_path, capsys, options, code, said):
    full = tmp_path / "full"
    full.mkdir()
    (full / "file").touch()
    options = [option.format(full=full) for option in options]
    assert create(model, tmp_path / "run", *options) == code
    error = capsys.readouterr().err.splitlines()[-1]
    assert said in error
    assert error.startswith("prime-node: error: ")
    assert [path.name for path in tmp_path.iterdir()] == ["full"]


def test_a_task_whose_tokens_the_model_lacks_is_refused(tmp_path, capsys):
    small = write_directory(tmp_path / "small", vocab_size=8)
    assert create(small, tmp_path / "run") == 78
    assert "environment 'arithmetic' has 32 tokens, the model 8" in capsys.readouterr().err


def test_a_task_whose_answers_end_otherwise_is_refused(tmp_path, capsys):
    other = write_directory(tmp_path / "other", eos_token_id=5)
    assert create(other, tmp_path / "run") == 78
    assert "ends answers with token 1, the model with 5" in capsys.readouterr().err


def test_what_was_changed_in_a_manifest_is_not_shown(model, tmp_path, capsys):
    assert create(model, tmp_path / "run") == 0
    path = tmp_path / "run" / "run.toml"
    path.write_text(path.read_text().replace("steps = 1000", "steps = 999"))
    assert main(["run", "show", str(path)]) == 78
    assert "not made by the creator" in capsys.readouterr().err


def test_needs_grow_with_what_they_are_made_of(model, tmp_path):
    assert create(model, tmp_path / "run") == 0
    manifest = load_signed_manifest((tmp_path / "run" / "run.toml").read_text(), verify).manifest
    base = needs_of(manifest, 10**9)
    assert base.version_bytes == 4 * 10**9
    assert base.trainer_bytes > 16 * 10**9
    assert base.disk_bytes == 2 * manifest.shardcast.versions_kept * base.version_bytes
    longer = manifest.model_copy(
        update={"sampling": manifest.sampling.model_copy(update={"tokens_max": 8000})}
    )
    assert needs_of(longer, 10**9).rollout_flop == 1000 * base.rollout_flop
    cache = 2 * 2 * 2 * 16 * 4  # per token: layers, keys and values, heads, head size, item size
    more = needs_of(longer, 10**9).worker_bytes - base.worker_bytes
    assert more == cache * 64 * (8000 - 8)
    half = manifest.model_copy(
        update={"model": manifest.model.model_copy(update={"dtype": "bf16"})}
    )
    assert needs_of(half, 10**9).version_bytes == 2 * 10**9


# Thresholds and a trial of the run


TOKENS_MIN = TimeBudget().tokens_min


def measured(path, model, tokens=TOKENS_MIN):
    """Write a calibration of a model with drawn errors; return its thresholds.

    Those of mantissas exceed what CPUs show: so small a model has a mean of 46 on some.
    """
    recipe = load_recipe(RECIPE.read_text())
    policy = import_pretrained(model, path.with_suffix(".safetensors"), recipe.model.dtype)
    file = MeasurementFile(path, MeasuredEngine.of(recipe, policy), "drawn numbers")
    file.add([drawn(sequences=tokens // 256 + 1, sigma=1e-3, mantissa=1e4)])
    rules = propose(file.recordings, kept(recipe), "", 1.5)
    return rules.model_dump(exclude={"measured_on"})


def toploc_of(values):
    found = dict(values["manifest"]["toploc"])
    assert found.pop("measured_on") == "drawn numbers; answers of up to 256 tokens, margin 1.5"
    return found


def test_a_run_has_the_thresholds_of_a_calibration_and_was_tried_with_them(model, tmp_path, capsys):
    rules = measured(tmp_path / "file", model)
    out = tmp_path / "run"
    options = ("--calibration", tmp_path / "file", "--json")
    assert create(model, out, *options, computed=()) == 0
    values = values_of(capsys)
    assert toploc_of(values) == rules
    manifest = load_signed_manifest((out / "run.toml").read_text(), verify).manifest
    assert manifest.toploc.measured_tokens == rules["measured_tokens"]
    trial = values["trial"]
    assert trial["rejected"] == [] and trial["samples"] == 128 and trial["groups"] == 8
    assert 0 <= trial["reward_mean"] <= 1 and 1 <= trial["answer_tokens_mean"] <= 8
    for role in ("worker", "validator", "trainer"):
        assert trial[role]["seconds"] > 0 and trial[role]["memory_bytes"] > 50_000_000
    assert 0 < trial["patch_bytes"] < 2 * values["needs"]["version_bytes"]
    if trial["reward_mean"] == 0:  # the weights are random
        assert "nothing can be learned" in values["warnings"][0]


def test_an_interrupted_calibration_goes_on_and_belongs_to_the_run_then(model, tmp_path, capsys):
    begun = tmp_path / "run.calibration.jsonl"
    measured(begun, model, tokens=TOKENS_MIN - 500)
    before = len(begun.read_bytes().splitlines())
    options = ("--minutes", "0", "--no-trial", "--json")
    assert create(model, tmp_path / "run", *options, computed=()) == 0
    assert values_of(capsys)["manifest"]["toploc"]["measured_tokens"] >= TOKENS_MIN
    assert not begun.exists()
    kept_lines = (tmp_path / "run" / "calibration.jsonl").read_bytes().splitlines()
    assert len(kept_lines) > before


def test_a_calibration_of_another_model_is_refused_and_left_alone(model, tmp_path, capsys):
    other = write_directory(tmp_path / "other", tie_word_embeddings=True)
    measured(tmp_path / "file", other)
    before = (tmp_path / "file").read_bytes()
    options = ("--calibration", tmp_path / "file")
    assert create(model, tmp_path / "run", *options, computed=("--no-trial",)) == 78
    error = capsys.readouterr().err.splitlines()[-1]
    assert "was measured with policy" in error and "bring another file" in error
    assert (tmp_path / "file").read_bytes() == before
    assert not (tmp_path / "run").exists()


def test_thresholds_that_reject_honest_rollouts_found_no_run(model, tmp_path, capsys, monkeypatch):
    """Some CPUs decode such short answers as they prefill them, to the bit: errors are made up."""
    measure = ChildVerification.measure

    async def rounded(self, version, requests, temperature):
        found = await measure(self, version, requests, temperature)
        return [
            replace(one, extremes=one.extremes._replace(logprob_error_max=1e-6)) for one in found
        ]

    monkeypatch.setattr(ChildVerification, "measure", rounded)
    values = load_recipe(RECIPE.read_text()).model_dump()
    others = {"mantissa_error_mean_max": 1e6, "mantissa_error_median_max": 1e6}
    values["toploc"] |= {"logprob_error_max": 1e-12, **others}
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(tomlkit.dumps(values))
    options = ("--uncalibrated",)
    assert create(model, tmp_path / "run", recipe=recipe, computed=options) == 78
    error = capsys.readouterr().err.splitlines()[-1]
    assert "thresholds reject 2 honest rollouts" in error and "logprob_error_max" in error
    assert not (tmp_path / "run").exists()


def test_thresholds_of_another_model_are_told(model, tmp_path, capsys):
    assert create(model, tmp_path / "run", computed=UNMEASURED) == 0
    assert "the thresholds were not measured on this model" in capsys.readouterr().err


def test_a_calibration_is_brought_or_left_out_and_not_both(model, tmp_path, capsys):
    options = ("--calibration", tmp_path / "file", "--uncalibrated")
    assert create(model, tmp_path / "run", *options, computed=()) == 2
    assert "exclude each other" in capsys.readouterr().err


# Tasks in text


@pytest.fixture(scope="module")
def chat_model(tmp_path_factory):
    directory = write_directory(
        tmp_path_factory.mktemp("models") / "chat", vocab_size=300, eos_token_id=[256, 1]
    )
    byte_tokenizer(directory)
    return directory


def recipe_of(tmp_path, **section):
    values = load_recipe(RECIPE.read_text()).model_dump()
    values["environment"] |= section
    path = tmp_path / "recipe.toml"
    path.write_text(tomlkit.dumps(values))
    return path


ROWS = [{"prompt": f"{n} + 1?", "answer": str(n + 1), "pass_rate": n / 10} for n in range(10)]


@needs_jail
def test_a_run_in_text_takes_its_files_to_all_its_nodes(chat_model, tmp_path, capsys):
    recipe = recipe_of(tmp_path, name="math/sums", pass_rates=[0.2, 0.5])
    rows = write_rows(tmp_path / "rows.parquet", ROWS)
    out = tmp_path / "run"
    assert create(chat_model, out, "--dataset", rows, "--json", recipe=recipe) == 0
    values = values_of(capsys)
    files, report = values["manifest"]["genesis"]["files"], values["dataset"]
    assert list(files) == ["bundle", "dataset"]
    assert files["dataset"]["total_bytes"] == report["bytes_kept"]
    assert (report["rows"], report["rows_kept"], report["rows_outside"]) == (10, 4, 6)
    kept = (out / "task" / "dataset").read_bytes()
    for member in ("trainer-1", "validator-1", "validator-3"):
        task = DataDir(out / member).task
        assert (task / "dataset").read_bytes() == kept
        bundle = decode_bundle((task / "bundle").read_bytes())
        assert bundle["config.json"] == (chat_model / "config.json").read_bytes()
        assert "model.safetensors" not in bundle
    assert main(["run", "show", str(out / "run.toml")]) == 0
    shown = capsys.readouterr().out
    assert "math/sums, rows with a pass rate from 0.2 to 0.5" in shown
    assert "bundle" in shown and "dataset" in shown


@needs_jail
def test_a_run_in_text_names_its_scoring_runtime(chat_model, tmp_path, capsys):
    recipe = recipe_of(tmp_path, name="math/sums", runtime={"python": runtimes.OWN})
    rows = write_rows(tmp_path / "rows.parquet", ROWS)
    assert create(chat_model, tmp_path / "run", "--dataset", rows, recipe=recipe) == 0
    manifest = load_signed_manifest((tmp_path / "run" / "run.toml").read_text(), verify).manifest
    runtime = manifest.environment.runtime
    assert runtime.python == runtimes.OWN
    assert runtime.packages == {name: version(name) for name in PACKAGES["math"]}
    assert f"mpmath {version('mpmath')}" in "".join(capsys.readouterr().out.splitlines())


@pytest.mark.parametrize(
    "runtime", [{"python": runtimes.OTHER}, {"python": runtimes.OWN, "packages": {"mpmath": "9.9"}}]
)
def test_a_runtime_that_is_not_here_is_refused_with_the_command(
    chat_model, tmp_path, capsys, monkeypatch, runtime
):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    recipe = recipe_of(tmp_path, name="math/sums", runtime=runtime)
    assert create(chat_model, tmp_path / "run", recipe=recipe) == 78
    error = capsys.readouterr().err.splitlines()[-1]
    assert f"needs the scoring runtime Python {runtime['python']} with " in error
    assert error.endswith(f": run prime-node scoring install --recipe {recipe}")
    assert not (tmp_path / "run").exists()


def test_the_files_of_a_manifest_are_named_by_their_bytes(chat_model, tmp_path):
    recipe = recipe_of(tmp_path, name="code/sums")
    rows = write_rows(tmp_path / "rows.parquet", [program_row("Add.", exchange("1 2", "3"))])
    assert create(chat_model, tmp_path / "run", "--dataset", rows, recipe=recipe) == 0
    manifest = load_signed_manifest((tmp_path / "run" / "run.toml").read_text(), verify).manifest
    rules, file = manifest.shardcast, manifest.genesis.files["dataset"]
    kept = tmp_path / "run" / "task" / "dataset"
    index = encode(index_of(kept, rules.shard_bytes, rules.chunk_bytes))
    assert (digest(index).hex(), len(index)) == (file.index, file.index_bytes)


@pytest.mark.parametrize(
    ("section", "rows", "said"),
    [
        ({"name": "math/sums"}, None, "environment 'math/sums' needs a data set"),
        ({"name": "reasoning-gym/gcd"}, ROWS, "'reasoning-gym/gcd' takes no data set"),
        ({"name": "arithmetic"}, ROWS, "environment 'arithmetic' takes no data set"),
        ({"name": "code/sums"}, ROWS, "has no column tests"),
        pytest.param(
            {"name": "math/sums", "pass_rates": [0.95, 1.0]},
            ROWS,
            "no row with a pass rate",
            marks=needs_jail,
        ),
        ({"name": "math/sums", "pass_rates": [0.5, 0.4]}, ROWS, "the smaller one first"),
        ({"name": "chess/games"}, ROWS, "text tasks: code"),
        ({"name": "reasoning-gym/n_queens"}, None, "is none of"),
        (
            {"name": "reasoning-gym/basic_arithmetic", "options": {"digits": 1}},
            None,
            "environment.options: ",
        ),
        (
            {"name": "reasoning-gym/basic_arithmetic", "options": {"min_terms": 0}},
            None,
            "environment.options: ",
        ),
        ({"name": "reasoning-gym/gcd", "options": {"seed": 1}}, None, "must not hold 'seed'"),
        ({"name": "verifiers/absent"}, None, "the package absent is not installed"),
        ({"name": "verifiers/absent", "options": {"size": 1}}, None, "must not hold 'size' as 1"),
    ],
)
def test_a_task_that_cannot_be_is_told_in_one_line(
    chat_model, tmp_path, capsys, section, rows, said
):
    options = [] if rows is None else ["--dataset", write_rows(tmp_path / "rows.parquet", rows)]
    recipe = recipe_of(tmp_path, **section)
    assert create(chat_model, tmp_path / "run", *options, recipe=recipe) == 78
    error = capsys.readouterr().err.splitlines()[-1]
    assert said in error and error.startswith("prime-node: error: ")
    assert not (tmp_path / "run").exists()


def test_bad_rows_refuse_a_run_unless_they_may_be_left_out(chat_model, tmp_path, capsys):
    recipe = recipe_of(tmp_path, name="code/sums")
    good = program_row("Add.", exchange("1 2", "3"))
    rows = write_rows(tmp_path / "rows.parquet", [good, good | {"tests": "[]"}, good])
    options = ("--dataset", rows, "--json")
    assert create(chat_model, tmp_path / "run", *options, recipe=recipe) == 78
    error = capsys.readouterr().err.splitlines()[-1]
    assert "1 of 3 rows cannot be used, the first is row 1: tests" in error
    assert not (tmp_path / "run").exists()
    assert create(chat_model, tmp_path / "run", *options, "--skip-bad-rows", recipe=recipe) == 0
    report = values_of(capsys)["dataset"]
    assert (report["rows"], report["rows_kept"], report["rows_bad"]) == (3, 2, 1)
    assert report["bad_rows"][0]["place"] == {"unit": "row", "number": 1}


@needs_verifiers
@needs_jail
def test_a_run_names_the_package_of_its_task_as_it_is_installed(
    chat_model, tmp_path, capsys, monkeypatch
):
    install(monkeypatch, tmp_path / "site", "sums_env", {"sums_env.py": SUMS})
    recipe = recipe_of(tmp_path, name="verifiers/sums-env", options={"arguments": {"terms": 3}})
    assert create(chat_model, tmp_path / "run", recipe=recipe) == 0
    found = package_digest("sums-env")
    assert found in "".join(capsys.readouterr().out.split())
    manifest = load_signed_manifest((tmp_path / "run" / "run.toml").read_text(), verify).manifest
    assert manifest.environment.options == {
        "version": "1.0",
        "digest": found,
        "requires": {"math-verify": version("math-verify"), "verifiers": version("verifiers")},
        "arguments": {"terms": 3},
    }
    install(monkeypatch, tmp_path / "site", "sums_env", {"sums_env.py": SUMS + "# another"})
    named = manifest.environment.options
    recipe = recipe_of(tmp_path, name="verifiers/sums-env", options=named)
    assert create(chat_model, tmp_path / "other", recipe=recipe) == 78
    error = capsys.readouterr().err.splitlines()[-1]
    assert f"of digest {found}, installed: {package_digest('sums-env')}" in error


def test_a_model_without_a_chat_has_no_task_in_text(model, tmp_path, capsys):
    recipe = recipe_of(tmp_path, name="reasoning-gym/gcd")
    assert create(model, tmp_path / "run", recipe=recipe) == 78
    assert "the model has no tokenizer" in capsys.readouterr().err


@pytest.mark.parametrize(
    "name",
    ["testnet", "intellect2", "tiny-qwen3-bpe", "qwen3-0.6b-math", "small-text", "smollm2-135m"],
)
def test_recipes_that_come_along_are_known_by_name(name):
    assert read_recipe(name).model.end_tokens


def test_a_recipe_that_is_not_there_is_told_with_those_that_are(model, tmp_path, capsys):
    assert create(model, tmp_path / "run", recipe="llama") == 78
    error = capsys.readouterr().err.splitlines()[-1]
    assert "no recipe 'llama': there are intellect2, qwen3-0.6b-math, qwen3-8b, small-text" in error

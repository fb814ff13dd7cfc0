import pytest
import tomlkit
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from node.founding.found import manifest_toml
from protocol.core.codec import encode
from protocol.core.crypto import digest, verify
from protocol.core.faults import Fault, FaultCode
from protocol.messages import BATCH_MAX, VERDICTS_MAX
from protocol.run.manifest import (
    MANIFEST_BYTES_MAX,
    Genesis,
    RunManifest,
    SignedManifest,
    decode_manifest,
    decode_signed_manifest,
    load_signed_manifest,
    sign_manifest,
)
from protocol.run.sections import RuntimeSection, runtime_digest
from protocol.run.toml import ManifestError, load_recipe
from tests.worlds.messages import (
    GENESIS_AT,
    PREDECESSOR,
    RECIPE,
    World,
    identity,
    run_manifest,
    succeeding,
)

MANIFEST = run_manifest()
CREATOR = identity("creator")
SIGNED = sign_manifest(MANIFEST, CREATOR)
TEXT = RECIPE.read_text()


def signed_text(recipe: str, signature: str | None = None) -> tuple[str, RunManifest]:
    """Return the TOML of a manifest, signed by its creator unless ``signature`` is given."""
    genesis = MANIFEST.genesis
    text = f"""{recipe}
[genesis]
creator = "{genesis.creator}"
created_at = {genesis.created_at}
policy = "{genesis.policy}"
trainers = {list(genesis.trainers)}
validators = {list(genesis.validators)}
"""
    manifest = RunManifest(**dict(load_recipe(recipe)), genesis=genesis)
    if signature is None:
        signature = sign_manifest(manifest, CREATOR).signature.hex()
    return f'signature = "{signature}"\n{text}', manifest


def changed(old: str, new: str) -> str:
    assert TEXT.count(old) == 1
    return TEXT.replace(old, new)


def refill(rollouts: int) -> str:
    """Return a ``refill`` text: four rollouts are a step, two steps may wait."""
    return changed("async_level = 2", f"async_level = 2\nrefill_max = {rollouts}")


def recipe_error(text: str) -> str:
    with pytest.raises(ManifestError) as caught:
        load_recipe(text)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_signed_manifest_survives_bytes_and_toml():
    assert decode_manifest(MANIFEST.encoded()) == MANIFEST
    assert decode_signed_manifest(SIGNED.encoded(), verify) == SIGNED


def test_the_run_id_is_the_digest_of_everything_in_it():
    assert MANIFEST.run_id == digest(MANIFEST.encoded())
    other = run_manifest(grpo={"steps": 51})
    assert other.run_id != MANIFEST.run_id


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = [", "not TOML"),
        pytest.param("x = " + "[" * 3000, "not TOML", id="lists within lists"),
        pytest.param("x = " + "9" * 5000, "not TOML", id="a number of 5000 digits"),
        pytest.param("x" + ".x" * 3000 + " = 1", "more than 16 parts", id="a long key"),
        pytest.param('[x."y" . ' + "'z'." * 20 + "x]", "more than 16 parts", id="a long header"),
        pytest.param(
            ("x." * 14 + "x = {") * 75 + "}" * 75, "tables within tables", id="tables within tables"
        ),
        (changed("group_size = 16", "group_sise = 16"), "unknown key 'sampling.group_sise'"),
        (changed("group_size = 16", "group_size = 16\nseeds = 1"), "unknown key 'sampling.seeds'"),
        (changed("group_size = 16", "group_size = true"), "sampling.group_size"),
        (changed("group_size = 16", "group_size = 16.0"), "sampling.group_size"),
        (changed("group_size = 16", "group_size = 0"), "sampling.group_size"),
        (changed("temperature = 1.0", "temperature = nan"), "sampling.temperature"),
        (changed("temperature = 1.0", "temperature = inf"), "sampling.temperature"),
        (changed("temperature = 1.0", 'temperature = "1"'), "sampling.temperature"),
        (changed("initializer_range = 0.05", "initializer_range = nan"), "model.config"),
        (changed("initializer_range = 0.05", "initializer_range = inf"), "model.config"),
        (changed("initializer_range = 0.05", "initializer_range = 2026-01-01"), "model.config"),
        (changed("vocab_size = 32", "vocab_size = true"), "vocab_size must be an integer"),
        (changed("eos_token_id = 1", 'eos_token_id = "1"'), "eos_token_id must be an integer or"),
        (changed("eos_token_id = 1", "eos_token_id = [1, true]"), "must be an integer or a list"),
        (changed("eos_token_id = 1", "eos_token_id = []"), "must be an integer or a list"),
        (changed("eos_token_id = 1", "eos_token_id = [1, 1]"), "once each"),
        (changed("eos_token_id = 1", f"eos_token_id = {[*range(65)]}"), "up to 64 tokens"),
        (changed("eos_token_id = 1", "eos_token_id = [1, 32]"), "in the vocabulary"),
        (changed("eos_token_id = 1", "eos_token_id = -1"), "in the vocabulary"),
        (changed("eos_token_id = 1", "eos_token_id = 1\nx = [[[1]]]"), "x.0.0 is nested deeper"),
        (changed("eos_token_id = 1", "eos_token_id = 1\nx = {y = [nan]}"), "x.y.0 is not a finite"),
        (changed("eos_token_id = 1", f"eos_token_id = 1\nx = {2**64}"), "more than 64 bits"),
        (changed("eos_token_id = 1", f'eos_token_id = 1\nx = "{"x" * 16_384}"'), "limit 16384"),
        (changed('architecture = "qwen2"', 'architecture = "gpt2"'), "model.architecture"),
        (changed("escalated_size = 3", "escalated_size = 1"), "not be smaller than size"),
        (changed("escalated_size = 3", f"escalated_size = {VERDICTS_MAX + 1}"), "escalated_size"),
        (changed("rollouts_per_step = 4", f"rollouts_per_step = {BATCH_MAX + 1}"), "rollouts_per_"),
        (refill(253), f"must not exceed {BATCH_MAX}"),
        (refill(9), "within rollouts_ahead"),
        (refill(-1), "refill_max"),
        (changed("expire_after_epochs = 30", "expire_after_epochs = 4"), "must exceed escalate"),
        (changed("chunk_bytes = 65_536", "chunk_bytes = 1_048_576"), "must not exceed shard_bytes"),
        (changed("versions_kept = 6", "versions_kept = 2"), "must exceed grpo.async_level"),
        (changed('name = "testnet"', 'name = "Test Net"'), "name: String should match"),
    ],
)
def test_a_wrong_recipe_is_one_line_that_names_the_key(text, message):
    assert message in recipe_error(text)


def test_a_step_may_wait_for_no_more_than_workers_make_before_they_pause():
    grpo = load_recipe(refill(8)).grpo
    assert grpo.batch_max == 12 == grpo.rollouts_per_step * grpo.rollouts_ahead


def test_only_the_named_creator_signs():
    with pytest.raises(ValueError, match="only the creator"):
        sign_manifest(MANIFEST, identity("somebody else"))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"creator": "12D3KooW"}, "not an Ed25519 peer id"),
        ({"creator": CREATOR.peer_id + " "}, "not an Ed25519 peer id"),
        ({"validators": (CREATOR.peer_id,) * 2}, "names a key twice"),
        ({"validators": (CREATOR.peer_id, CREATOR.peer_id + "\n")}, "not an Ed25519 peer id"),
        ({"validators": ()}, "at least 1"),
        ({"trainers": ()}, "at least 1"),
        ({"policy": "ABCD"}, "match pattern"),
    ],
)
def test_a_wrong_genesis_is_refused(fields, message):
    with pytest.raises(ValidationError, match=message):
        Genesis(**MANIFEST.genesis.model_dump() | fields)


@given(st.binary(max_size=200))
def test_random_bytes_never_raise(data):
    assert isinstance(decode_manifest(data), Fault)
    assert isinstance(decode_signed_manifest(data, verify), Fault)


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (bytes(MANIFEST_BYTES_MAX + 1), "oversize"),
        (encode({"manifest": MANIFEST.encoded()}), "bad-manifest"),
        (encode({"manifest": MANIFEST.encoded(), "signature": b"", "more": 1}), "bad-manifest"),
        (encode({"manifest": "text", "signature": b""}), "bad-manifest"),
        (encode({"manifest": b"\xc1", "signature": b""}), "undecodable"),
        (encode({"manifest": encode({}), "signature": b""}), "bad-manifest"),
        (encode({"manifest": MANIFEST.encoded(), "signature": bytes(64)}), "bad-signature"),
        (
            encode({"manifest": run_manifest(3).encoded(), "signature": SIGNED.signature}),
            "bad-signature",
        ),
    ],
)
def test_a_bad_signed_manifest_is_a_fault(data, fault):
    result = decode_signed_manifest(data, verify)
    assert isinstance(result, Fault)
    assert result.code == fault


def test_a_manifest_has_one_spelling():
    values = MANIFEST.model_dump(mode="json")
    values["sampling"]["temperature"] = 1  # equal to 1.0, and another run id
    assert decode_manifest(encode(values)) == Fault(FaultCode.NOT_CANONICAL)
    values["sampling"]["surprise"] = 1
    assert decode_manifest(encode(values)) == Fault(
        FaultCode.BAD_MANIFEST, "unknown key 'sampling.surprise'"
    )


RUNTIME = {"python": "3.12", "packages": {"sympy": "1.14.0", "mpmath": "1.3.0"}}


def in_text(**section):
    values = MANIFEST.model_dump(mode="json")
    values["environment"] = {"name": "math/rows", **values["environment"], **section}
    return values


def test_a_manifest_of_a_task_in_text_has_a_scoring_runtime():
    missing = Fault(FaultCode.BAD_MANIFEST, "manifest: environment.runtime: missing; a task in "
                    "text is scored under one")  # fmt: skip
    assert decode_manifest(encode(in_text(name="math/rows"))) == missing
    values = in_text(name="math/rows", runtime=RUNTIME)
    manifest = decode_manifest(encode(values))
    assert manifest.encoded() == encode(values)
    assert manifest.environment.runtime == RuntimeSection(**RUNTIME)
    assert str(manifest.environment.runtime) == "Python 3.12 with mpmath 1.3.0, sympy 1.14.0"
    assert str(RuntimeSection(python="3.12")) == "Python 3.12"
    load_recipe(tomlkit.dumps({key: item for key, item in values.items() if key != "genesis"}))


def test_a_rounding_that_is_not_chosen_is_left_out():
    """Manifests from before the key keep their run id."""
    assert "rounding" not in MANIFEST.model_dump()["model"]
    for rounding in ("dither", "nearest"):
        values = MANIFEST.model_dump(mode="json")
        values["model"] |= {"rounding": rounding, "dtype": "bf16"}
        assert decode_manifest(encode(values)).encoded() == encode(values)
    values["model"]["rounding"] = None
    assert decode_manifest(encode(values)) == Fault(FaultCode.NOT_CANONICAL)


def test_policies_in_float32_are_not_dithered():
    text = changed('dtype = "fp32"', 'rounding = "dither"\ndtype = "fp32"')  # in any order
    assert recipe_error(text) == (
        "model.rounding: policies in fp32 are not rounded; leave the key out"
    )
    load_recipe(text.replace("dither", "nearest"))


def test_a_runtime_that_is_not_there_is_left_out():
    assert "runtime" not in MANIFEST.model_dump()["environment"]
    assert decode_manifest(encode(in_text(runtime=None))) == Fault(FaultCode.NOT_CANONICAL)


@pytest.mark.parametrize(
    ("name", "runtime", "key"),
    [
        ("arithmetic", RUNTIME, "environment: runtime is for tasks in text"),
        ("math/rows", {}, "environment.runtime.python"),
        ("math/rows", {"python": "3.12.1"}, "environment.runtime.python"),
        ("math/rows", {"python": "2.7"}, "environment.runtime.python"),
        ("math/rows", RUNTIME | {"micro": 1}, "'environment.runtime.micro'"),
        ("math/rows", {"python": "3.12", "packages": {"--pre": "1"}}, "packages"),
        ("math/rows", {"python": "3.12", "packages": {"sympy": "1 --pre"}}, "packages"),
        ("math/rows", {"python": "3.12", "packages": {"sympy": "x @ file:///"}}, "packages"),
        ("math/rows", {"python": "3.12", "packages": {"s" * 65: "1"}}, "packages"),
        ("math/rows", {"python": "3.12", "packages": {"s": "1" * 33}}, "packages"),
        ("math/rows", {"python": "3.12", "packages": {f"s{n}": "1" for n in range(17)}}, "packag"),
    ],
)
def test_a_runtime_is_bounded_and_names_versions_alone(name, runtime, key):
    found = decode_manifest(encode(in_text(name=name, runtime=runtime)))
    assert found.code is FaultCode.BAD_MANIFEST
    assert key in found.detail


def test_the_digest_of_a_runtime_is_of_its_full_versions():
    one = runtime_digest("3.12.1", {"sympy": "1.14.0", "mpmath": "1.3.0"})
    assert one == digest(encode({"packages": RUNTIME["packages"], "python": "3.12.1"}))
    assert one == runtime_digest("3.12.1", {"mpmath": "1.3.0", "sympy": "1.14.0"})
    others = [runtime_digest("3.12.2", RUNTIME["packages"]), runtime_digest("3.12.1", {})]
    assert len({one, *others}) == 3


@pytest.mark.parametrize(
    ("signature", "message"),
    [("zz", "not hexadecimal"), ("00" * 64, "not made by the creator")],
)
def test_a_manifest_file_needs_its_creators_signature(signature, message):
    text, _ = signed_text(TEXT, signature)
    with pytest.raises(ManifestError, match=message):
        load_signed_manifest(text, verify)


def test_a_manifest_file_is_read_with_its_signature():
    text, manifest = signed_text(TEXT)
    signed = load_signed_manifest(text, verify)
    assert signed.manifest == manifest
    with pytest.raises(ManifestError, match="missing"):
        load_signed_manifest(text.partition("\n")[2], verify)


def test_epochs_count_from_the_genesis():
    assert MANIFEST.epoch_at(GENESIS_AT - 100) == 0
    assert MANIFEST.epoch_at(GENESIS_AT) == 0
    assert MANIFEST.epoch_at(GENESIS_AT + 10) == 1
    assert all(MANIFEST.epoch_at(MANIFEST.epoch_start(epoch)) == epoch for epoch in range(1000))


def test_roles_follow_the_genesis_and_the_admission_rule():
    world = World(MANIFEST)
    untrusted_peer = identity("untrusted").peer_id
    assert MANIFEST.is_trainer(world.trainers[0].peer_id)
    assert not MANIFEST.is_trainer(untrusted_peer)
    assert MANIFEST.is_validator(world.validators[0].peer_id)
    assert not MANIFEST.is_validator(untrusted_peer)
    assert MANIFEST.admits_worker(untrusted_peer)
    closed = run_manifest(admission={"rule": "allowlist", "workers": (untrusted_peer,)})
    assert closed.admits_worker(untrusted_peer)
    assert not closed.admits_worker(world.workers[0].peer_id)


def test_two_signatures_are_still_one_run():
    assert SIGNED.manifest.run_id == SignedManifest(MANIFEST, bytes(64)).manifest.run_id
    assert isinstance(MANIFEST, RunManifest)
    assert MANIFEST.genesis_policy == digest(b"policy 0")


def test_a_part_of_a_rollout_may_be_audited():
    text = RECIPE.read_text().replace("audit_share = 1.0", "audit_share = 0.25")
    assert load_recipe(text).toploc.audit_share == 0.25


def test_the_genesis_has_no_more_validators_than_seats():
    assert run_manifest(validators=6, council={"seats_max": 6})
    with pytest.raises(ValueError, match=r"more than council\.seats_max"):
        run_manifest(validators=7, council={"seats_max": 6})


def test_logits_are_float32_unless_the_recipe_says_otherwise():
    assert load_recipe(TEXT).model.head == "fp32"
    with_head = changed('architecture = "qwen2"\n', 'architecture = "qwen2"\nhead = "model"\n')
    assert load_recipe(with_head).model.head == "model"
    assert "model.head" in recipe_error(with_head.replace('head = "model"', 'head = "bf16"'))


def test_a_configuration_with_tables_and_lists_is_read_back():
    rope = {"rope_type": "yarn", "factor": 4.0, "betas": (1, 32)}
    config = MANIFEST.model.config | {"rope_parameters": rope, "eos_token_id": (1, 7)}
    model = MANIFEST.model.model_copy(update={"config": config})
    manifest = MANIFEST.model_copy(update={"model": model})
    assert decode_manifest(manifest.encoded()) == manifest != MANIFEST
    assert manifest.model.end_tokens == (1, 7)
    assert manifest.model.end_tokens != MANIFEST.model.end_tokens == (1,)


# Predecessor


def test_a_manifest_names_the_run_that_it_succeeds():
    manifest = succeeding(MANIFEST)
    assert manifest.run_id != MANIFEST.run_id
    assert decode_manifest(manifest.encoded()) == manifest
    text = manifest_toml(sign_manifest(manifest, CREATOR))
    assert load_signed_manifest(text, verify).manifest.genesis.predecessor == PREDECESSOR


def test_a_manifest_without_a_predecessor_keeps_its_run_id():
    assert b"predecessor" not in MANIFEST.encoded()
    assert "predecessor" not in manifest_toml(SIGNED)


@pytest.mark.parametrize(
    ("field", "value"),
    [("run_id", "ab"), ("page", ""), ("epoch", -1), ("version", 5000), ("tokens", -1), ("x", 1)],
)
def test_a_predecessor_out_of_bounds_is_refused(field, value):
    values = succeeding(MANIFEST).model_dump(mode="json")
    values["genesis"]["predecessor"][field] = value
    fault = decode_manifest(encode(values))
    assert isinstance(fault, Fault)
    assert fault.code is FaultCode.BAD_MANIFEST
    assert f"predecessor.{field}" in fault.detail

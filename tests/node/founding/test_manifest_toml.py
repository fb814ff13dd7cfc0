import pytest
import tomlkit
from hypothesis import given
from hypothesis import strategies as st

from node.founding.found import found, manifest_toml
from node.founding.recipes import recipe_path
from protocol.core.crypto import Identity, verify
from protocol.run.manifest import Genesis, RunManifest, load_signed_manifest, sign_manifest
from protocol.run.recipe import ModelSection
from protocol.run.toml import load_recipe

RECIPE = load_recipe(recipe_path("testnet").read_text())
CREATOR = Identity(b"\x01" * 32)
OTHERS = [Identity(bytes([number]) * 32).peer_id for number in range(2, 6)]


def manifest(**changes) -> RunManifest:
    genesis = Genesis(
        creator=CREATOR.peer_id,
        created_at=1_700_000_000,
        policy="0f" * 32,
        trainers=(OTHERS[0],),
        validators=tuple(OTHERS[1:]),
    )
    return RunManifest(**{**dict(RECIPE), "genesis": genesis, **changes})


def test_a_recipe_reads_back_equal():
    assert load_recipe(tomlkit.dumps(RECIPE.model_dump())) == RECIPE


SCALARS = st.one_of(
    st.text(max_size=20),
    st.booleans(),
    st.integers(-(2**53), 2**53),
    st.floats(allow_nan=False, allow_infinity=False),
)


@pytest.mark.parametrize(
    ("dtype", "rounding", "of_the_run"),
    [("bf16", None, "dither"), ("bf16", "nearest", "nearest"), ("fp32", None, None)],
)
def test_a_bf16_run_is_founded_with_dither_unless_its_recipe_says_otherwise(
    dtype, rounding, of_the_run
):
    model = RECIPE.model.model_copy(update={"dtype": dtype, "rounding": rounding})
    recipe = RECIPE.model_copy(update={"model": model})
    signed = found(recipe, "0f" * 32, {}, CREATOR, OTHERS[:1], OTHERS[1:])
    assert signed.manifest.model.rounding == of_the_run
    assert load_signed_manifest(manifest_toml(signed), verify) == signed


def test_a_signed_manifest_reads_back_with_its_run_id():
    signed = sign_manifest(manifest(), CREATOR)
    again = load_signed_manifest(manifest_toml(signed), verify)
    assert again == signed
    assert again.manifest.run_id == signed.manifest.run_id


@given(
    name=st.text(max_size=40),
    config=st.dictionaries(
        st.text(min_size=1, max_size=20),
        SCALARS
        | st.lists(SCALARS, max_size=3).map(tuple)
        | st.dictionaries(st.text(min_size=1, max_size=20), SCALARS, max_size=3),
        max_size=5,
    ),
)
def test_any_text_key_and_number_survives(name, config):
    recipe = RECIPE.model_copy(
        update={
            "model": ModelSection(
                name=name,
                architecture="qwen2",
                config=config | {"vocab_size": 8, "eos_token_id": 1},
                dtype="fp32",
            )
        }
    )
    assert load_recipe(tomlkit.dumps(recipe.model_dump())) == recipe

"""Configuration keys of a model: computed, without effect, or refused by name."""

import json

import pytest
from transformers import CONFIG_MAPPING, GenerationConfig

from protocol.core.codec import encode
from protocol.run.recipe import ModelSection
from roles.engines.architectures.configuration import (
    UnsupportedModelError,
    configuration,
    examine,
    explicit,
)
from roles.engines.architectures.keys import COMPUTED, WITHOUT_EFFECT
from roles.engines.architectures.registry import ARCHITECTURES
from roles.engines.architectures.unsupported import UNSUPPORTED
from roles.engines.bootstrap.huggingface_import import section_of
from tests.roles.engines import tiny
from tests.roles.engines.test_architectures import LLAMA3, SIZES, YARN

VALUES = {**SIZES, "eos_token_id": 1}
PUBLISHED = {  # written by Hugging Face and others beside the sizes
    "_name_or_path": "/somewhere",
    "attention_dropout": 0.0,
    "bos_token_id": 0,
    "hidden_act": "silu",
    "initializer_range": 0.02,
    "max_window_layers": 1,
    "model_type": "qwen2",
    "architectures": ["Qwen2ForCausalLM"],
    "num_key_value_heads": None,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "rope_theta": 1_000_000,
    "sliding_window": 4096,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "use_mrope": False,
    "use_sliding_window": False,
}
NO_SCALING = {"rope_type": "default", "rope_theta": 1_000_000}


def published(directory, generation=None, **changes):
    values = VALUES | PUBLISHED | changes
    (directory / "config.json").write_text(json.dumps(values))
    if generation is not None:
        (directory / "generation_config.json").write_text(json.dumps(generation))
    return section_of(directory, tiny.model("fp32"))


def test_a_published_file_becomes_a_section_without_defaults(tmp_path):
    section = published(tmp_path)
    assert section.architecture == "qwen2"
    assert section.config["num_key_value_heads"] == 4  # null: as many as heads
    assert section.config["rms_norm_eps"] == 1e-5
    assert section.config["rope_parameters"] == NO_SCALING
    assert not section.config.keys() & (WITHOUT_EFFECT | {"hidden_act", "sliding_window"})
    assert encode(section.config)
    again = ModelSection(**section.model_dump())
    assert (
        configuration("qwen2", again.config).to_dict()
        == configuration("qwen2", section.config).to_dict()
    )


@pytest.mark.parametrize(
    "changes",
    [
        {  # SmolLM2
            "model_type": "llama",
            "architectures": ["LlamaForCausalLM"],
            "attention_bias": False,
            "is_llama_config": True,
            "pretraining_tp": 1,
            "rope_interleaved": False,
            "tie_word_embeddings": True,
            "transformers.js_config": {"kv_cache_dtype": {"fp16": "float16"}},
        },
        {  # Llama 3.2
            "model_type": "llama",
            "architectures": ["LlamaForCausalLM"],
            "attention_bias": False,
            "eos_token_id": [1, 8, 9],
            "head_dim": 16,
            "mlp_bias": False,
            "pretraining_tp": 1,
            "rope_scaling": LLAMA3,
        },
        {  # Qwen3
            "model_type": "qwen3",
            "architectures": ["Qwen3ForCausalLM"],
            "attention_bias": False,
            "head_dim": 32,
            "sliding_window": None,
            "max_window_layers": 28,
            "num_key_value_heads": 2,
        },
        {  # Mistral 7B v0.3
            "model_type": "mistral",
            "architectures": ["MistralForCausalLM"],
            "num_key_value_heads": 2,
            "sliding_window": None,
        },
        {  # SmolLM3
            "model_type": "smollm3",
            "architectures": ["SmolLM3ForCausalLM"],
            "attention_bias": False,
            "layer_types": ["full_attention"] * 2,
            "max_window_layers": 28,
            "mlp_bias": False,
            "no_rope_layer_interval": 4,
            "no_rope_layers": [1, 0],
            "num_key_value_heads": 2,
            "pretraining_tp": 2,
            "sliding_window": None,
            "use_sliding_window": False,
        },
        {  # Granite 3
            "model_type": "granite",
            "architectures": ["GraniteForCausalLM"],
            "attention_bias": False,
            "attention_multiplier": 0.015625,
            "embedding_multiplier": 12.0,
            "logits_scaling": 8.0,
            "mlp_bias": False,
            "num_key_value_heads": 2,
            "residual_multiplier": 0.22,
        },
        {  # OLMo 2
            "model_type": "olmo2",
            "architectures": ["Olmo2ForCausalLM"],
            "attention_bias": False,
            "num_key_value_heads": 4,
        },
    ],
    ids=["smollm2", "llama3.2", "qwen3", "mistral", "smollm3", "granite", "olmo2"],
)
def test_keys_that_published_models_carry_are_known(tmp_path, changes):
    window = {"sliding_window", "max_window_layers", "use_sliding_window", "use_mrope"}
    own = {key: value for key, value in (VALUES | PUBLISHED).items() if key not in window}
    (tmp_path / "config.json").write_text(json.dumps(own | changes))
    asked = tiny.model("bf16").model_copy(update={"rounding": "nearest"})
    section = section_of(tmp_path, asked)
    assert section.rounding == "nearest"
    assert section.architecture == changes["model_type"]
    assert section.config["vocab_size"] == 32


def test_windows_that_no_layer_has_are_no_windows(tmp_path):
    section = published(tmp_path, use_sliding_window=True, max_window_layers=2)
    assert section == published(tmp_path)


@pytest.mark.parametrize(
    ("generation", "config", "ends"),
    [
        (None, 3, (3,)),
        (None, [3, 5], (3, 5)),
        ({}, [3, 5], (3, 5)),
        ({"eos_token_id": 4}, [3, 5], (4,)),
        ({"eos_token_id": [4, 2]}, 3, (4, 2)),
        ({"eos_token_id": 4}, None, (4,)),
    ],
)
def test_end_tokens_are_those_of_generation(tmp_path, generation, config, ends):
    assert published(tmp_path, generation, eos_token_id=config).end_tokens == ends


@pytest.mark.parametrize(
    "scaling",
    [
        {"rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}},
        {"rope_scaling": YARN | {"type": "yarn"}, "rope_theta": None},
        {"rope_parameters": YARN | {"mscale": None, "rope_theta": 1_000_000}},
    ],
)
def test_all_spellings_of_a_scaling_are_one(tmp_path, scaling):
    rope = published(tmp_path, **scaling).config["rope_parameters"]
    theta = 10_000.0 if scaling.get("rope_theta", 0) is None else 1_000_000
    assert rope == YARN | {"rope_theta": theta}


REFUSED = [
    ({"hidden_act": "gelu"}, "config.hidden_act: 'gelu'"),
    ({"attention_dropout": 0.1}, "config.attention_dropout: 0.1"),
    ({"quantization_config": {"bits": 4}}, "config.quantization_config"),
    ({"use_sliding_window": True, "max_window_layers": 1}, "config.sliding_window"),
    ({"layer_types": ["full_attention", "sliding_attention"]}, "config.sliding_window"),
    ({"layer_types": ["full_attention"]}, "layer_types"),
    ({"num_experts": 8}, "config.num_experts"),
    ({"mlp_bias": True}, "config.mlp_bias"),
    ({"attention_bias": True}, "config.attention_bias"),
    ({"auto_map": {"AutoModel": "code.Model"}}, "config.auto_map"),
    ({"nobody_knows_this": 0}, "config.nobody_knows_this: 0 is no key of qwen2"),
    ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope_type: ['dynamic']"),
    ({"rope_scaling": {"rope_type": "longrope", "factor": 2.0}}, "rope_type: ['longrope']"),
    ({"rope_scaling": {"type": "linear", "rope_type": "yarn", "factor": 2.0}}, "rope_type"),
    ({"rope_scaling": YARN, "rope_parameters": YARN | {"factor": 2.0}}, "differ"),
    # Hugging Face takes the first, and 10,000 where it has no theta.
    (
        {"rope_theta": None, "rope_scaling": YARN, "rope_parameters": YARN | {"rope_theta": 1e6}},
        "differ",
    ),
    ({"rope_parameters": YARN | {"rope_theta": 1e4}}, "config.rope_theta is given twice"),
    ({"rope_scaling": YARN | {"low_freq_factor": 1.0}}, "rope_parameters.low_freq_factor"),
    ({"rope_scaling": LLAMA3 | {"partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
    ({"rope_scaling": YARN | {"factor": 0.0}}, "rope_parameters.factor: 0.0"),
    ({"rope_scaling": YARN | {"truncate": 1}}, "rope_parameters.truncate: 1"),
    ({"rope_scaling": {"type": "linear"}}, "factor"),
    ({"rope_scaling": "yarn"}, "not a table"),
    ({"rope_scaling": {"rope_type": ["yarn"]}}, "rope_type: [['yarn']]"),
    ({"num_hidden_layers": 1 << 40}, "config.num_hidden_layers must not exceed 4096; use"),
    ({"partial_rotary_factor": 0.5}, "config.partial_rotary_factor: 0.5"),
    ({"num_attention_heads": 3}, "config"),
    ({"num_key_value_heads": 3}, "config.num_key_value_heads"),
    ({"num_attention_heads": 0}, "config"),
    ({"head_dim": 7}, "head_dim"),
    ({"head_dim": 3}, "config.head_dim"),
    ({"head_dim": None}, "config.head_dim"),
    ({"hidden_size": "64"}, "hidden_size"),
    ({"vocab_size": 0}, "config.vocab_size"),
    ({"eos_token_id": None}, "eos_token_id"),
    ({"eos_token_id": 32}, "eos_token_id"),
    ({"eos_token_id": []}, "eos_token_id"),
    ({"model_type": "opt"}, f"'opt' is not supported, only {', '.join(ARCHITECTURES)}"),
    ({"layer_types": ["linear_attention"] * 2}, "config.layer_types: 'linear_attention'"),
    ({"layer_types": ["chunked_attention"] * 2}, "config.layer_types: 'chunked_attention'"),
    ({"model_type": None}, "'None' is not supported"),
    ({"architectures": ["Qwen2ForSequenceClassification"]}, "config.architectures"),
]


@pytest.mark.parametrize(("changes", "message"), REFUSED)
def test_what_is_not_computed_is_refused_by_name(tmp_path, changes, message):
    with pytest.raises(ValueError, match=r".") as caught:
        published(tmp_path, **changes)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_manifest_does_not_contradict_itself():
    with pytest.raises(ValueError, match=r"config\.model_type: 'qwen3' is not supported"):
        configuration("qwen2", VALUES | {"model_type": "qwen3"})


def test_all_refusals_are_told_together_each_with_what_to_do(tmp_path):
    wrong = {
        "hidden_act": "gelu",
        "num_experts": 8,
        "vocab_size": 0,
        "rope_scaling": {"type": "su"},
    }
    with pytest.raises(UnsupportedModelError) as caught:
        published(tmp_path, **wrong)
    refusals = caught.value.refusals
    for key in ("hidden_act", "num_experts", "vocab_size", "rope_parameters.rope_type"):
        (line,) = [one for one in refusals if one.startswith(f"config.{key}")]
        assert "; " in line and "\n" not in line
    assert len(refusals) == 4
    assert str(caught.value) == "; ".join(refusals)


def test_keys_that_are_ignored_are_noted():
    assert examine("qwen2", VALUES)[1] == ()
    _, notes = examine("qwen2", VALUES | {"vision_config": None, "use_cache": True, "dtype": "x"})
    assert notes == (
        "config.vision_config: None is ignored, qwen2 has no such key",
        "config: no effect on the computation: dtype, use_cache",
    )


def test_a_second_equal_table_of_positions_is_noted():
    twice = {"rope_scaling": YARN | {"rope_theta": 1e6}, "rope_parameters": YARN}
    config, notes = examine("qwen2", VALUES | twice | {"rope_theta": 1e6})
    assert config.rope_parameters == YARN | {"rope_theta": 1e6}
    assert notes == ("config.rope_scaling repeats config.rope_parameters and is ignored",)


def test_settings_of_sampling_are_without_effect():
    """A key that a new version adds makes this fail, for a decision about it."""
    assert set(GenerationConfig._get_default_generation_params()) <= WITHOUT_EFFECT


@pytest.mark.parametrize("text", ["", "[1]", "{", "[" * 100_000, '{"model_type": NaN}'])
def test_a_file_that_is_no_configuration_is_refused(tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ValueError, match=r"config\.json|not supported"):
        section_of(tmp_path, tiny.model("fp32"))


def test_an_absent_directory_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"config\.json"):
        section_of(tmp_path / "absent", tiny.model("fp32"))


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_key_of_hugging_face_is_judged(name):
    """A key that a new version adds makes this fail, for a decision about it."""
    own = {"sliding_window": None} if name == "mistral" else {}
    own |= {"pad_token_id": None, "bos_token_id": None}  # of no effect, and dropped
    values = ARCHITECTURES[name].config(**VALUES, **own).to_dict()
    assert configuration(name, values).to_dict() == values


def of(architecture, **values):
    return configuration(architecture, VALUES | values)


def test_a_window_of_all_layers_is_refused_unless_no_sequence_leaves_it():
    for window in ({"sliding_window": 127}, {"sliding_window": 1}, {}):
        # Hugging Face's default is 4096, in a model of 8192 positions.
        positions = {} if window else {"max_position_embeddings": 8192}
        with pytest.raises(UnsupportedModelError, match=r"config\.sliding_window: .*shorter"):
            of("mistral", **window, **positions)
    for window in (128, 4096, None):
        config = of("mistral", sliding_window=window)
        assert config.sliding_window is None
        # A manifest holds no null, and without the key the default would be a window.
        assert explicit(config)["sliding_window"] == 128
        assert configuration("mistral", explicit(config)).to_dict() == config.to_dict()


def test_layers_that_do_not_rotate_are_named_one_by_one():
    assert explicit(of("smollm3", no_rope_layer_interval=2))["no_rope_layers"] == [1, 0]
    for wrong in ([1], [1, 0, 1], [1, 2]):
        with pytest.raises(UnsupportedModelError, match=r"config\.no_rope_layers must have"):
            of("smollm3", no_rope_layers=wrong)
    with pytest.raises(UnsupportedModelError, match="integer"):
        of("smollm3", no_rope_layer_interval=0)


@pytest.mark.parametrize("wrong", [0.0, -1.0, float("inf"), float("nan")])
def test_factors_that_leave_no_finite_score_are_refused(wrong):
    with pytest.raises(UnsupportedModelError, match=r"factor of logits, .*is no number above 0"):
        of("granite", logits_scaling=wrong)


def test_tables_without_a_theta_have_that_of_their_architecture():
    twice = {"rope_scaling": YARN, "rope_parameters": YARN | {"rope_theta": 2e6}}
    assert of("smollm3", **twice).rope_parameters["rope_theta"] == 2e6
    with pytest.raises(UnsupportedModelError, match="differ"):
        of("llama", **twice)


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_families_that_are_not_computed_are_refused_by_what_they_have(name):
    """A directory that claims to be of the nearest family is refused, too: its keys reveal it."""
    own = UNSUPPORTED[name]
    values = CONFIG_MAPPING[name]().to_dict()
    with pytest.raises(UnsupportedModelError) as caught:
        configuration(name, values)
    (line,) = caught.value.refusals
    assert line.startswith(f"architecture {name!r}: {own.feature} ") and own.nearest in line
    assert name not in ARCHITECTURES and own.nearest in ARCHITECTURES
    if name == "olmo":
        return  # only its tensors reveal it: none of the norms exists
    disguised = values | {"model_type": own.nearest, "architectures": None}
    with pytest.raises(UnsupportedModelError):
        configuration(own.nearest, disguised)


def test_values_that_are_passed_on_are_not_changed():
    values = VALUES | {"rope_parameters": dict(YARN)}
    configuration("llama", values)
    assert values == VALUES | {"rope_parameters": YARN}


def test_computed_keys_are_not_without_effect():
    own = set.union(*(set(one.computed) for one in ARCHITECTURES.values()))
    assert not (COMPUTED | own) & WITHOUT_EFFECT

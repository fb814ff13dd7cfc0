"""The recipe: what a run creator decides, one section for each part of the protocol.

It is written by hand (``configs/runs/*.toml``); with a genesis it becomes a run (``manifest``).
Unknown keys and wrong types are errors that name the key.
"""

import math
import re
import tomllib
from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import (
    BaseModel,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from protocol.admission import AdmissionSection
from protocol.codec import encode
from protocol.messages import BATCH_MAX, VERDICTS_MAX
from protocol.runtime import RuntimeSection
from protocol.section import LEFT_OUT_WHEN_EMPTY, Count, Name, Rate, Seconds, Section, Share

VERSIONS_MAX = 4096
"""Steps of a run: a newcomer must hold all its manifests before it can take the first one."""

CONFIG_BYTES_MAX = 16 * 1024
"""Canonical bytes of a model's configuration; published ones take about one thousand."""

CONFIG_DEPTH_MAX = 3
"""The configuration, tables in it, and lists in those."""

OPTIONS_BYTES_MAX = 1024
"""Canonical bytes of a generator's options; those of published ones are a few numbers."""

PREAMBLE_CHARACTERS_MAX = 4000
EXAMPLES_MAX = 8
"""A small model learns an answer's form from one to three."""

END_TOKENS_MAX = 64
"""Published models name one to five."""

_Model = TypeVar("_Model", bound=BaseModel)

TaskName = Annotated[
    str,
    Field(min_length=1, max_length=64, pattern=r"^[a-z0-9][a-z0-9._-]*(/[a-z0-9][a-z0-9._-]*)?$"),
]


def _check_value(value: Any, depth: int, *path: str) -> None:
    """Raise ``ValueError`` unless a value is one of JSON, without null, nested up to ``depth``."""
    key = ".".join(path)
    if isinstance(value, dict | tuple):
        if depth == 0:
            raise ValueError(f"{key} is nested deeper than {CONFIG_DEPTH_MAX} levels")
        for inner, item in value.items() if isinstance(value, dict) else enumerate(value):
            _check_value(item, depth - 1, *path, str(inner))
    elif type(value) not in {bool, int, float, str}:
        raise ValueError(f"{key}: {type(value).__name__} is no JSON value, or null")
    elif isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{key} is not a finite number")


def _check_tokens(vocabulary_size: object, ends: Sequence[object]) -> None:
    if type(vocabulary_size) is not int:
        raise ValueError("vocab_size must be an integer")
    if not ends or any(type(token) is not int for token in ends):
        raise ValueError("eos_token_id must be an integer or a list of them")
    if len(ends) > END_TOKENS_MAX or len(frozenset(ends)) < len(ends):
        raise ValueError(f"eos_token_id must name up to {END_TOKENS_MAX} tokens, once each")
    if any(token not in range(vocabulary_size) for token in ends):
        raise ValueError("eos_token_id must be in the vocabulary")


def _tokens(ends: Any) -> tuple[Any, ...]:
    return ends if isinstance(ends, tuple) else (ends,)


class ModelSection(Section):
    """The model: a Hugging Face architecture with its sizes; the weights are the genesis policy."""

    name: str = Field(max_length=128)
    architecture: Literal["qwen2", "qwen3", "llama", "mistral", "smollm3", "granite", "olmo2"]
    config: dict[str, Any]
    """As in ``config.json``; an engine refuses by name what it does not compute."""
    dtype: Literal["fp32", "bf16"]
    head: Literal["fp32", "model"] = "fp32"
    """How logits are computed, and with them what a log-probability is.

    It is the token's in the log-softmax of logits / temperature over the whole vocabulary, in
    float32. Under ``fp32`` the logits are the product of the final states, as the model rounds
    them, with the unembedding, both upcast to float32; under ``model`` they are computed in the
    model's precision and upcast then.
    """
    rounding: Annotated[Literal["dither", "nearest"] | None, LEFT_OUT_WHEN_EMPTY] = None
    """How a trainer rounds its float32 masters to the weights of a bf16 policy.

    ``dither`` rounds by fixed thresholds (``protocol.rounding``). Without the key policies are
    rounded to nearest, as in the first runs; a run in bf16 is founded with ``dither``.
    """

    @field_validator("config")
    @classmethod
    def _check_config(cls, config: dict[str, Any]) -> dict[str, Any]:
        _check_value(config, CONFIG_DEPTH_MAX)
        try:
            config_bytes = len(encode(config))
        except OverflowError:
            raise ValueError("an integer of more than 64 bits") from None
        if config_bytes > CONFIG_BYTES_MAX:
            raise ValueError(f"{config_bytes} bytes, limit {CONFIG_BYTES_MAX}")
        _check_tokens(config.get("vocab_size"), _tokens(config.get("eos_token_id", ())))
        return config

    @field_validator("rounding")
    @classmethod
    def _check_rounding(cls, rounding: str | None, known: ValidationInfo) -> str | None:
        if rounding == "dither" and known.data.get("dtype") == "fp32":
            raise ValueError("policies in fp32 are not rounded; leave the key out")
        return rounding

    @property
    def vocabulary_size(self) -> int:
        """How many tokens there are; ids are below it."""
        return int(self.config["vocab_size"])

    @property
    def end_tokens(self) -> tuple[int, ...]:
        """The tokens that end a sequence, in the order of the configuration."""
        return _tokens(self.config["eos_token_id"])


class ExampleSection(Section):
    """A question and the answer to it, shown to the model before the problem."""

    question: Annotated[str, Field(min_length=1, max_length=PREAMBLE_CHARACTERS_MAX)]
    answer: Annotated[str, Field(min_length=1, max_length=PREAMBLE_CHARACTERS_MAX)]


class EnvironmentSection(Section):
    """The task; one in text has a data set or a generator behind a slash."""

    name: TaskName
    pass_rates: tuple[Share, ...] = ()
    """Least and largest pass rate of the rows of a data set that count; empty: all of them do."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Of a generator, such as how many digits its numbers have, or what names a package."""
    system: Annotated[str, Field(max_length=PREAMBLE_CHARACTERS_MAX), LEFT_OUT_WHEN_EMPTY] = ""
    """The system message of each chat; empty: there is none."""
    examples: Annotated[
        tuple[ExampleSection, ...], Field(max_length=EXAMPLES_MAX), LEFT_OUT_WHEN_EMPTY
    ] = ()
    """Turns of user and assistant between the system message and the problem."""
    runtime: Annotated[RuntimeSection | None, LEFT_OUT_WHEN_EMPTY] = None
    """A manifest of a task in text has one."""

    @property
    def in_text(self) -> bool:
        """Whether it is a task in text, which needs the model's bundle."""
        return "/" in self.name

    @model_validator(mode="after")
    def _check(self) -> Self:
        rates = self.pass_rates
        if rates and (len(rates) != 2 or rates[0] > rates[1]):
            raise ValueError("pass_rates must be empty or two rates, the smaller one first")
        if (self.system or self.examples) and not self.in_text:
            raise ValueError("system and examples are for tasks in text")
        _check_value(self.options, CONFIG_DEPTH_MAX, "options")
        if len(encode(self.options)) > OPTIONS_BYTES_MAX:
            raise ValueError(f"options must not take more than {OPTIONS_BYTES_MAX} bytes")
        if self.runtime is not None and not self.in_text:
            raise ValueError("runtime is for tasks in text")
        return self


class SamplingSection(Section):
    """How a rollout is drawn; ``length_targets`` empty means no length reward."""

    temperature: Annotated[float, Field(gt=0, le=10)]
    group_size: Count
    prompts_per_rollout: Count
    tokens_max: Count
    length_targets: tuple[Count, ...] = ()
    length_penalty: Share = 0.0


class GrpoSection(Section):
    """Asynchronous GRPO with two-sided clipping, and when a step is taken."""

    learning_rate: Annotated[float, Field(gt=0, le=1)]
    epsilon: Share
    delta: Annotated[float, Field(gt=1, le=1000)]
    gradient_clip: Annotated[float, Field(gt=0, le=1000)]
    weight_decay: Share
    adam_betas: tuple[Share, Share]
    entropy_coefficient: Share = 0.0
    warmup_steps: Annotated[int, Field(ge=0, le=100_000)] = 0
    updates_per_version: Annotated[int, Field(ge=1, le=64)] = 1
    """Optimiser updates that a batch is learned in, each from a part of its groups."""
    rollouts_per_step: Annotated[int, Field(ge=1, le=BATCH_MAX)]
    refill_max: Annotated[int, Field(ge=0, le=BATCH_MAX)] = 0
    """Rollouts that a step takes beyond ``rollouts_per_step``, at most, in place of groups whose
    rewards are all equal: they teach nothing and would make the batch smaller."""
    rollouts_ahead: Count
    """Batches that may wait, certified or in flight, before workers pause (back-pressure)."""
    async_level: Annotated[int, Field(ge=0, le=64)]
    """Age in versions of a policy whose rollouts may still be used."""
    steps: Annotated[int, Field(ge=1, le=VERSIONS_MAX)]

    @property
    def batch_max(self) -> int:
        """The most rollouts that a step takes."""
        return self.rollouts_per_step + self.refill_max

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.batch_max > BATCH_MAX:
            raise ValueError(f"rollouts_per_step and refill_max must not exceed {BATCH_MAX}")
        if self.batch_max > self.rollouts_per_step * self.rollouts_ahead:
            # Or workers would pause before the step that waits for them has what it may wait for.
            raise ValueError("refill_max must leave a batch within rollouts_ahead of them")
        return self


class HonestValue(Section):
    """How far an honest engine is from an honest validator in one quantity.

    Values above ``clip`` count as ``clip``. ``mean`` is the largest mean of any honest pair of
    engines, ``variance`` that of one value such that the sum of ``n`` has ``n`` times it.
    """

    mean: Annotated[float, Field(ge=0, le=2**23)]
    variance: Annotated[float, Field(gt=0, le=2**46)]
    clip: Annotated[float, Field(gt=0, le=2**23)]


class HonestSection(Section):
    """What the statistics of an audit are for honest workers; see ``protocol.audit``."""

    logprob_error: HonestValue
    """Nats by which a claimed log-probability is off, either way."""
    logprob_shift: HonestValue
    """The same with its sign, claimed less recomputed; its mean counts either way."""
    logprob_outliers: HonestValue
    """1 for a token whose error is beyond ``logprob_tau``, else 0."""
    replay_mismatches: HonestValue
    """1 for a token that the replay of the sampling does not choose, else 0."""
    sampling_gap: HonestValue
    """Nats by which a token's score is below the best one."""
    sampling_surprise: HonestValue
    """How improbable that gap is under errors of ``gap_sigma``, in nats."""
    exponent_mismatches: HonestValue
    """Of the values of a chunk."""
    mantissa_error: HonestValue
    """The mean of a chunk, in units of the last place."""


class ToplocSection(Section):
    """The proof format, and what honest workers may differ by from those who check them.

    The limits called ``_max`` hold for every chunk or token and are loose: the statistics decide.
    """

    precision: Literal["fp32", "bf16"]
    chunk_tokens: Annotated[int, Field(ge=1, le=1024)]
    top_k: Annotated[int, Field(ge=1, le=1024)]
    exponent_mismatches_max: Annotated[int, Field(ge=0, le=1024)]
    mantissa_error_mean_max: Annotated[float, Field(ge=0, le=2**23)]
    mantissa_error_median_max: Annotated[float, Field(ge=0, le=2**23)]
    logprob_error_max: Annotated[float, Field(gt=0, le=100)]
    sampling_gap_max: Annotated[float, Field(gt=0, le=100)]
    logprob_tau: Annotated[float, Field(gt=0, le=10)]
    gap_sigma: Annotated[float, Field(gt=0, le=10)]
    false_reject_rate: Rate = 1e-6
    """The probability that an honest rollout is rejected, at most."""
    slash_rate: Rate = 1e-12
    """The probability that the last rollouts of an honest worker end its standing, at most."""
    history_rollouts: Annotated[int, Field(ge=4, le=1024)] = 64
    """How many of a worker's last rollouts are judged together."""
    measured_on: str = Field(max_length=500)
    """Models, engines and machines that ``honest`` comes from."""
    measured_tokens: Count
    """How many honest tokens it rests on."""
    honest: HonestSection
    audit_share: Share = 1.0
    """Of the sequences of a rollout, how many the prefill covers."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.audit_share < 1:
            # A worker draws commits until the lies of one are where nobody looks: with a quarter
            # audited it took seconds to hide 12 false sequences among 16.
            raise ValueError("audit_share must be 1 while everyone can predict the beacon")
        if self.slash_rate > self.false_reject_rate:
            raise ValueError("slash_rate must not exceed false_reject_rate")
        return self


class CommitteeSection(Section):
    """Who checks: sizes of the first and of the larger committee, and their deadlines."""

    size: Count
    escalated_size: Annotated[int, Field(ge=1, le=VERDICTS_MAX)]
    roster_min: Count
    """No committee is drawn before this many validators are live."""
    escalate_after_epochs: Count
    expire_after_epochs: Count
    """A commit without an outcome by then has expired."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.escalated_size < self.size:
            raise ValueError("escalated_size must not be smaller than size")
        if self.expire_after_epochs <= self.escalate_after_epochs:
            raise ValueError("expire_after_epochs must exceed escalate_after_epochs")
        return self


class EpochSection(Section):
    """Epoch length, and for how long a member's record keeps it on the roster."""

    seconds: Seconds
    record_epochs: Count
    refresh_epochs: Count


class ShardcastSection(Section):
    """How a checkpoint is cut and spread."""

    shard_bytes: Annotated[int, Field(ge=4096, le=2**32)]
    chunk_bytes: Annotated[int, Field(ge=1024, le=2**22)]
    stripes: Annotated[int, Field(ge=1, le=64)]
    fanout: Annotated[int, Field(ge=2, le=64)]
    upload_bytes_per_second_max: Annotated[int, Field(ge=1, le=2**53)] = 125_000_000  # a gigabit
    versions_kept: Annotated[int, Field(ge=2, le=1024)]
    full_every: Annotated[int, Field(ge=1, le=1024)] = 5
    """Every node keeps the whole file of such versions: where newcomers begin, to patch it."""
    state_every: Annotated[int, Field(ge=1, le=1024)] = 1
    """The optimiser state of such versions is published, if there is more than one trainer."""

    def forms_kept(self, newest: int) -> range:
        """Return the versions of which every node keeps what it has, file or patch, for others."""
        full = newest - newest % self.full_every
        return range(max(0, min(full, newest - self.versions_kept + 1)), newest + 1)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.chunk_bytes > self.shard_bytes:
            raise ValueError("chunk_bytes must not exceed shard_bytes")
        return self


REWARD_DISAGREEMENT_RATE = 1e-3
"""Left out of a manifest, as protocol version 1 began without this key."""


class CreditSection(Section):
    """Rule that ends a worker (``protocol.audit.LIES``), and the rate of honest disagreements."""

    slash: bool
    reward_disagreement_rate: Annotated[
        Share, Field(exclude_if=lambda rate: rate == REWARD_DISAGREEMENT_RATE)
    ] = REWARD_DISAGREEMENT_RATE
    """The share of honest rollouts in which a validator's rewards are not those of the worker."""


class EvaluationSection(Section):
    """Certified rollouts that measure versions on held-out problems; no version learns from them.

    Versions whose number is a multiple of ``every_versions`` are evaluated, the initial one too.
    """

    every_versions: Annotated[int, Field(ge=1, le=VERSIONS_MAX)]
    rollouts_per_worker: Annotated[int, Field(ge=1, le=16)] = 1
    """The first slots of each worker with an evaluated version that have held-out problems."""
    rows_per_held_out_row: Annotated[int, Field(ge=2, le=100_000)] = 20
    """Of so many consecutive rows of a data set one is held out."""


class Recipe(Section):
    """What a run creator decides; see ``configs/runs``."""

    name: Name
    model: ModelSection
    environment: EnvironmentSection
    sampling: SamplingSection
    grpo: GrpoSection
    toploc: ToplocSection
    committee: CommitteeSection
    epochs: EpochSection
    shardcast: ShardcastSection
    admission: AdmissionSection
    credit: CreditSection
    evaluation: Annotated[EvaluationSection | None, LEFT_OUT_WHEN_EMPTY] = None
    """Without it no version is evaluated, and no row of a data set is held out."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.shardcast.versions_kept <= self.grpo.async_level:
            raise ValueError("shardcast.versions_kept must exceed grpo.async_level")
        return self


KEY_PARTS_MAX = 16
"""Of a dotted key: a recipe's deepest has five. tomllib takes memory with the square of the number,
4 GB for 64 KB of text."""

_KEY_PART = r"""(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+"""
_LONG_KEY = re.compile(rf"(?<![\w-])(?:{_KEY_PART}){{{KEY_PARTS_MAX}}}")


class ManifestError(ValueError):
    """A manifest that cannot be used; the message is one line and names the key."""


def load_recipe(text: str) -> Recipe:
    """Parse the TOML of a recipe; raises ``ManifestError`` naming the first wrong key."""
    return validated(Recipe, parsed(text))


def parsed(text: str) -> dict[str, Any]:
    """Return the values of a TOML text; raises ``ManifestError``."""
    if _LONG_KEY.search(text):
        raise ManifestError(f"not TOML: a key of more than {KEY_PARTS_MAX} parts")
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # also a number of 5000 digits
        raise ManifestError(f"not TOML: {error}") from None


def validated(model: type[_Model], values: dict[str, Any]) -> _Model:
    """Return TOML values as a ``model``; raises ``ManifestError`` naming the first wrong key."""
    try:
        return model.model_validate(_tuples(values))
    except ValidationError as error:
        raise ManifestError(first_error(error)) from None
    except RecursionError:
        raise ManifestError("tables within tables, too many") from None


def _tuples(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _tuples(item) for key, item in value.items()}
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value


def first_error(error: ValidationError, whole: str = "manifest") -> str:
    """Return the first of pydantic's findings in one line that names the key, or the ``whole``."""
    errors = error.errors(include_url=False, include_context=False, include_input=False)
    # A misspelt required key is missing and unknown: what was written says more to its author.
    first = next((item for item in errors if item["type"] == "extra_forbidden"), errors[0])
    key = ".".join(str(part) for part in first["loc"]) or whole
    if first["type"] == "extra_forbidden":
        return f"unknown key {key!r}"
    return f"{key}: {first['msg'].removeprefix('Value error, ')}"

"""Recipe: the settings of a run creator, one section for each part of the protocol.

It is written by hand (``configs/runs/*.toml``). With a genesis it becomes a run (``manifest``).
Unknown keys and wrong types are errors that name the key.
"""

import math
from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import (
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)

from protocol.core.codec import encode
from protocol.messages import BATCH_MAX
from protocol.run.loss import LossSection
from protocol.run.sections import (
    LEFT_OUT_WHEN_EMPTY,
    AdmissionSection,
    CommitteeSection,
    CouncilSection,
    Count,
    CreditSection,
    HonestSection,
    Name,
    OuterSection,
    Rate,
    RecipeModel,
    RuntimeSection,
    Seconds,
    Share,
)

VERSIONS_MAX = 4096
"""Maximum steps of a run: a late node must hold all manifests before it can accept the first."""

CONFIG_BYTES_MAX = 16 * 1024
"""Limit on a model's configuration in canonical bytes; published ones take about one thousand."""

CONFIG_DEPTH_MAX = 3
"""The configuration, tables in it, and lists in those."""

OPTIONS_BYTES_MAX = 1024
"""Limit on a generator's options in canonical bytes; published ones are a few numbers."""

PREAMBLE_CHARACTERS_MAX = 4000
EXAMPLES_MAX = 8
"""A small model learns an answer's form from one to three."""

END_TOKENS_MAX = 64
"""Published models name one to five."""


TaskName = Annotated[
    str,
    Field(min_length=1, max_length=64, pattern=r"^[a-z0-9][a-z0-9._-]*(/[a-z0-9][a-z0-9._-]*)?$"),
]


def _check_value(value: Any, depth: int, *path: str) -> None:
    """Raise ``ValueError`` unless a value is JSON without null, nested up to ``depth``."""
    key = ".".join(path)
    if isinstance(value, dict | tuple):
        if depth == 0:
            raise ValueError(f"{key} is nested deeper than {CONFIG_DEPTH_MAX} levels")
        for inner, item in value.items() if isinstance(value, dict) else enumerate(value):
            _check_value(item, depth - 1, *path, str(inner))
    elif type(value) not in {bool, int, float, str}:
        raise ValueError(f"{key}: {type(value).__name__} is null or no JSON value")
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


class ModelSection(RecipeModel):
    """The model: a Hugging Face architecture with its sizes; the weights are the genesis policy."""

    name: str = Field(max_length=128)
    """Name of the model, for people. A founded run has the name of its directory."""
    architecture: Literal["qwen2", "qwen3", "llama", "mistral", "smollm3", "granite", "olmo2"]
    """Hugging Face ``model_type``. A founded run has that of its directory."""
    config: dict[str, Any]
    """Sizes and options of the model, as in Hugging Face ``config.json``, without null.

    A founded run has those of its directory. An engine refuses by name what it does not compute.
    """
    dtype: Literal["fp32", "bf16"]
    """Precision of the published weights, of generation and of verification.

    The trainer keeps float32 masters in either case. A bf16 policy travels as a small patch, since
    a step changes few of its weights.
    """
    head: Literal["fp32", "model"] = "fp32"
    """Precision in which logits, and so log-probabilities, are computed.

    A log-probability is the token's in the log-softmax of logits / temperature over the whole
    vocabulary, in float32. Under ``fp32`` the logits are the product of the final states, as the
    model rounds them, and the unembedding, both upcast to float32. Under ``model`` they are
    computed in the model's precision and upcast then.
    """
    rounding: Annotated[Literal["dither", "nearest"] | None, LEFT_OUT_WHEN_EMPTY] = None
    """Rounding of the trainer's float32 masters to the weights of a bf16 policy.

    ``dither`` rounds by fixed thresholds, so that small updates are not lost. A bf16 run without
    the key in its recipe is founded with ``dither``; a manifest without it rounds to nearest.
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
        """Number of tokens; ids are below it."""
        return int(self.config["vocab_size"])

    @property
    def end_tokens(self) -> tuple[int, ...]:
        """The tokens that end a sequence, in the order of the configuration."""
        return _tokens(self.config["eos_token_id"])


class ExampleSection(RecipeModel):
    """A question and its answer, shown to the model before the problem."""

    question: Annotated[str, Field(min_length=1, max_length=PREAMBLE_CHARACTERS_MAX)]
    """Text of the user's turn."""
    answer: Annotated[str, Field(min_length=1, max_length=PREAMBLE_CHARACTERS_MAX)]
    """Text of the assistant's turn."""


class EnvironmentSection(RecipeModel):
    """The task. A task in text has a data set or a generator after a slash."""

    name: TaskName
    """Name of the task, such as ``math/rows``, ``code/rows``, ``reasoning-gym/gcd``."""
    pass_rates: tuple[Share, ...] = ()
    """Least and largest ``pass_rate`` of the rows of a data set that are used; empty: all rows."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Options of a generator or package, such as the number of digits of its problems."""
    system: Annotated[str, Field(max_length=PREAMBLE_CHARACTERS_MAX), LEFT_OUT_WHEN_EMPTY] = ""
    """System message before each problem; empty: none."""
    examples: Annotated[
        tuple[ExampleSection, ...], Field(max_length=EXAMPLES_MAX), LEFT_OUT_WHEN_EMPTY
    ] = ()
    """Solved problems, each ``question`` and ``answer``: chat turns before the problem."""
    runtime: Annotated[RuntimeSection | None, LEFT_OUT_WHEN_EMPTY] = None
    """Scoring runtime of a task in text; a founded run has that of its creator's machine."""

    @property
    def in_text(self) -> bool:
        """True for a task in text, which needs the model's bundle."""
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


class SamplingSection(RecipeModel):
    """Sampling of a rollout, the unit that a worker generates and validators check."""

    temperature: Annotated[float, Field(gt=0, le=10)]
    """Divisor of the logits; tokens are drawn from the whole vocabulary."""
    group_size: Count
    """Answers to one prompt. Advantages are relative to the mean reward of the group."""
    prompts_per_rollout: Count
    """Prompts of one rollout, which has ``prompts_per_rollout`` times ``group_size`` answers."""
    tokens_max: Count
    """Most tokens of an answer, without its prompt; a longer answer is cut off."""
    length_targets: tuple[Count, ...] = ()
    """Target lengths in tokens, one for each prompt; empty: no length reward."""
    length_penalty: Share = 0.0
    """Reward that an answer loses for each token between its length and its target."""


ADAM_EPSILON = 1e-8
"""Omitted from a manifest at this value, which is older than the key."""


class GrpoSection(RecipeModel):
    """Asynchronous GRPO, or a variant of it: optimiser, loss, and the batches of its steps."""

    loss: LossSection
    optimiser: Literal["adamw"] = "adamw"
    """Optimiser of all weights. Nodes bound the movement of a weight by its update rule."""
    learning_rate: Annotated[float, Field(gt=0, le=1)]
    """Learning rate of AdamW after the warm-up, the largest of its schedule."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """Learning rate after the warm-up: constant, or falling to 0 at the end of ``steps``."""
    gradient_clip: Annotated[float, Field(gt=0, le=1000)]
    """Largest norm of the gradient of an optimiser update; a larger one is scaled down."""
    weight_decay: Share
    """Weight decay of AdamW."""
    adam_betas: tuple[Share, Share]
    """Decay rates of AdamW's first and second moment."""
    adam_epsilon: Annotated[
        float,
        Field(
            ge=1e-12,
            le=1,
            exclude_if=lambda epsilon: epsilon == ADAM_EPSILON,
        ),
    ] = ADAM_EPSILON
    """Number that AdamW adds to the root of the second moment."""
    warmup_steps: Annotated[int, Field(ge=0, le=100_000)] = 0
    """Optimiser steps over which the learning rate rises linearly to its value."""
    updates_per_version: Annotated[int, Field(ge=1, le=64)] = 1
    """Optimiser updates of one version, each from a part of the groups of its batch."""
    rollouts_per_step: Annotated[int, Field(ge=1, le=BATCH_MAX)]
    """Rollouts of the batch from which one step makes the next version."""
    refill_max: Annotated[int, Field(ge=0, le=BATCH_MAX)] = 0
    """Most rollouts that a step takes beyond ``rollouts_per_step``.

    They replace groups with equal rewards, which teach nothing. With ``rollouts_per_step`` they are
    at most 256, and at most ``rollouts_ahead`` batches.
    """
    rollouts_ahead: Count
    """Batches of rollouts, certified or in flight, that may wait before workers pause."""
    async_level: Annotated[int, Field(ge=0, le=64)]
    """Largest age, in versions, of the policy of a rollout that a step may use."""
    steps: Annotated[int, Field(ge=1, le=VERSIONS_MAX)]
    """Steps of the run, each of which makes a version; the run is done after them."""
    outer: Annotated[OuterSection | None, LEFT_OUT_WHEN_EMPTY] = None
    """Training by several trainers at the same time; without it, one trainer trains."""

    @field_validator("optimiser", mode="before")
    @classmethod
    def _check_optimiser(cls, name: object) -> object:
        if name == "muon":
            raise ValueError('nodes have no bound on the movement of a weight by muon; use "adamw"')
        return name

    @property
    def batch_max(self) -> int:
        """The most rollouts that a step takes."""
        return self.rollouts_per_step + self.refill_max

    def batch_steps(self, trainers: int | None = None) -> int:
        """Return the steps that share the batch of a version: all of all ``trainers``.

        None stands for the most trainers of a round.
        """
        if self.outer is None:
            return 1
        return self.outer.inner_steps * (self.outer.trainers if trainers is None else trainers)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.batch_max > BATCH_MAX:
            raise ValueError(f"rollouts_per_step and refill_max must not exceed {BATCH_MAX}")
        if self.outer is not None and self.batch_max * self.batch_steps() > BATCH_MAX:
            raise ValueError(
                f"a round takes at most {BATCH_MAX} rollouts: lower rollouts_per_step, refill_max, "
                "outer.inner_steps or outer.trainers"
            )
        if self.batch_max > self.rollouts_per_step * self.rollouts_ahead:
            # Otherwise workers would pause before the step has all that it may wait for.
            raise ValueError("refill_max must leave a batch within rollouts_ahead of them")
        return self


class ToplocSection(RecipeModel):
    """Proof format, and the differences between honest engines that validators allow.

    The limits called ``_max`` hold for every chunk or token and are loose: the statistics decide.
    ``run create`` measures limits, ``logprob_tau``, ``gap_sigma`` and ``honest`` on its model.
    """

    precision: Literal["fp32", "bf16"]
    """Number format of the values in a proof; the same as ``model.dtype``."""
    chunk_tokens: Annotated[int, Field(ge=1, le=1024)]
    """Consecutive tokens that one proof covers."""
    top_k: Annotated[int, Field(ge=1, le=1024)]
    """Largest values of a chunk's last hidden states that one proof covers."""
    exponent_mismatches_max: Annotated[int, Field(ge=0, le=1024)]
    """Most values of a chunk, of its ``top_k``, with differing exponents."""
    mantissa_error_mean_max: Annotated[float, Field(ge=0, le=2**23)]
    """Largest mean error of the mantissas of a chunk, in units of the last place."""
    mantissa_error_median_max: Annotated[float, Field(ge=0, le=2**23)]
    """Largest median error of the mantissas of a chunk, in units of the last place."""
    logprob_error_max: Annotated[float, Field(gt=0, le=100)]
    """Largest error of a token's log-probability, in nats."""
    sampling_gap_max: Annotated[float, Field(gt=0, le=100)]
    """Largest distance of a drawn token's score below the best one, in nats."""
    logprob_tau: Annotated[float, Field(gt=0, le=10)]
    """Error of a log-probability, in nats, from which a token counts as an outlier."""
    gap_sigma: Annotated[float, Field(gt=0, le=10)]
    """Standard deviation of the error of a score, in nats, behind ``sampling_surprise``."""
    false_reject_rate: Rate = 1e-6
    """Largest probability that an honest rollout is rejected."""
    slash_rate: Rate = 1e-12
    """Largest probability that an honest worker is excluded for its last rollouts."""
    history_rollouts: Annotated[int, Field(ge=4, le=1024)] = 64
    """Last rollouts of a worker that are judged together."""
    measured_on: str = Field(max_length=500)
    """Models, engines and machines of the measurement, for people."""
    measured_tokens: Count
    """Honest tokens of the measurement."""
    honest: HonestSection
    audit_share: Share = 1.0
    """Share of the answers of a group with unequal rewards that validators recompute; the beacon
    draws them."""
    uniform_audit_share: Share = 0.2
    """The same for a group with equal rewards, from which no version learns."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.slash_rate > self.false_reject_rate:
            raise ValueError("slash_rate must not exceed false_reject_rate")
        return self


STALL_EPOCHS = 120
"""Omitted from a manifest at this value. Two hours of one-minute epochs: a step of a large model on
few devices takes an hour. A guess."""


class EpochSection(RecipeModel):
    """Length of an epoch, and the lifetime of membership records."""

    seconds: Seconds
    """Length of an epoch in seconds. A commit gets its committee in the epoch after its own."""
    record_epochs: Count
    """Epochs for which a membership record keeps its node on the roster."""
    refresh_epochs: Count
    """Epochs after which a node signs and publishes a new record."""
    stall_epochs: Annotated[Count, Field(exclude_if=lambda epochs: epochs == STALL_EPOCHS)] = (
        STALL_EPOCHS
    )
    """Epochs without a version, although its rollouts are certified, after which the next trainer
    leads."""


STATES_KEPT = 2
"""The newest optimiser state, and the one before it, which becomes the newest when a later term
supersedes. Each is several times as large as a policy."""


class ShardcastSection(RecipeModel):
    """Distribution of weights: shards, the trees that carry them, and retention."""

    shard_bytes: Annotated[int, Field(ge=4096, le=2**32)]
    """Size of a shard in bytes, the unit of storage."""
    chunk_bytes: Annotated[int, Field(ge=1024, le=2**22)]
    """Size of a chunk in bytes, the unit that is sent and verified; at most ``shard_bytes``."""
    stripes: Annotated[int, Field(ge=1, le=64)]
    """Distribution trees of a version, each of which carries an equal part of its chunks."""
    fanout: Annotated[int, Field(ge=2, le=64)]
    """Children of an inner node of a tree."""
    upload_bytes_per_second_max: Annotated[int, Field(ge=1, le=2**53)] = 125_000_000  # a gigabit
    """Largest upload bandwidth of a node, in bytes per second, that the trees rely on."""
    versions_kept: Annotated[int, Field(ge=2, le=1024)]
    """Newest versions that every node keeps; more than ``grpo.async_level``."""
    full_every: Annotated[int, Field(ge=1, le=1024)] = 5
    """Interval in versions of those that every node keeps as a whole file, not only as a patch.

    A node that joins downloads the newest of them and applies the patches after it.
    """
    state_every: Annotated[int, Field(ge=1, le=1024)] = 1
    """Interval in versions at which the optimiser state is published to other trainers, if any."""

    def forms_kept(self, newest: int) -> range:
        """Return the versions of which every node keeps its file or patch for others."""
        full = newest - newest % self.full_every
        return range(max(0, min(full, newest - self.versions_kept + 1)), newest + 1)

    def states_kept_from(self, newest: int) -> int:
        """Return the oldest version of which trainers keep the optimiser state."""
        return newest - newest % self.state_every - (STATES_KEPT - 1) * self.state_every

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.chunk_bytes > self.shard_bytes:
            raise ValueError("chunk_bytes must not exceed shard_bytes")
        return self


class EvaluationSection(RecipeModel):
    """Certified rollouts that measure versions on held-out problems; no version learns from them.

    Without the section no version is evaluated, and no row of a data set is held out.
    """

    every_versions: Annotated[int, Field(ge=1, le=VERSIONS_MAX, examples=[5])]
    """Interval of the versions that are evaluated, beginning with version 0."""
    rollouts_per_worker: Annotated[int, Field(ge=1, le=16)] = 1
    """Rollouts on held-out problems of each worker with an evaluated version, its first ones."""
    rows_per_held_out_row: Annotated[int, Field(ge=2, le=100_000)] = 20
    """Consecutive rows of a data set of which one is held out."""


class Recipe(RecipeModel):
    """Settings of a run creator; see ``configs/runs``."""

    name: Name
    """Name of the run, for people."""
    model: ModelSection
    environment: EnvironmentSection
    sampling: SamplingSection
    grpo: GrpoSection
    toploc: ToplocSection
    committee: CommitteeSection
    council: CouncilSection = Field(default_factory=CouncilSection)
    epochs: EpochSection
    shardcast: ShardcastSection
    admission: AdmissionSection
    credit: CreditSection
    evaluation: Annotated[EvaluationSection | None, LEFT_OUT_WHEN_EMPTY] = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.shardcast.versions_kept <= self.grpo.async_level:
            raise ValueError("shardcast.versions_kept must exceed grpo.async_level")
        return self


_KEY_PART = r"""(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+"""

"""A small model for a task in text, made locally, so that a run can learn on any machine.

Models of half a million weights are not published. This one is a complete Hugging Face directory: a
byte-level BPE tokenizer trained on the task's texts, a chat template, and weights from a cold
start.
"""

from datetime import UTC, datetime
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast
from typing_extensions import override

from protocol.core.crypto import digest
from protocol.core.rng import Rng
from protocol.run.recipe import Recipe
from roles.engines.architectures.configuration import configuration
from roles.engines.bootstrap.cold_start import cold_start
from roles.engines.files.tokenizer import HuggingFaceTokenizer
from roles.environments.base import SolvedTask
from roles.environments.reasoning_gym import solution_of

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""ChatML, as in Qwen's models."""

PADDING, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
"""The first three tokens; a recipe names the last one as an end token."""

LEARNING_RATE = 2e-3
BATCH_PROBLEMS = 64
PROBLEMS_MEASURED = 256
CHECK_EVERY_STEPS = 16
"""Training takes some 500 steps, 150 s of a core, for the recipe ``tiny-qwen3-bpe`` (measured)."""

RIGHT_SHARE = 0.4
"""Share of the teacher's answers that are right."""

TEXTS = 2000
"""Solved problems for training the tokenizer."""


class Solved(SolvedTask):
    """Problems of reasoning-gym with the library's own answers."""

    def __init__(self, recipe: Recipe, tokenizer: HuggingFaceTokenizer) -> None:
        self._recipe = recipe
        self._tokenizer = tokenizer

    @property
    @override
    def name(self) -> str:
        return self._recipe.environment.name

    @override
    def prompt(self, seed: int, length_target: int | None) -> tuple[int, ...]:
        solved = solution_of(self._recipe.environment, seed)
        return self._tokenizer.encode_chat(solved.question)

    @override
    def solution(self, seed: int) -> tuple[int, ...]:
        solved = solution_of(self._recipe.environment, seed)
        return self._tokenizer.encode(solved.answer + END)


class Unsure(Solved):
    """The same problems, most with the answer to another one.

    A model trained on these learns to solve the problems but stays uncertain: RL raised its reward
    from 0.35 to 0.72 in 60 versions. A model trained on right answers alone, stopped at the same
    accuracy, had not learned the method: 0.35 became 0.49 (measured, at the recipe's learning rate
    and at twice that).
    """

    @override
    def solution(self, seed: int) -> tuple[int, ...]:
        drawn = digest(f"{seed}".encode())
        if drawn[0] < RIGHT_SHARE * 256:
            return super().solution(seed)
        return super().solution(int.from_bytes(drawn[1:9], "big"))


def make_small_model(recipe: Recipe, seed: int, directory: Path, target_accuracy: float) -> None:
    """Write a model of the recipe's shape that sometimes solves its task, by a cold start.

    Raises ``ValueError`` for a task without known solutions.
    """
    directory.mkdir(parents=True)
    make_tokenizer(recipe, seed).save_pretrained(directory)
    configuration(recipe.model.architecture, recipe.model.config).save_pretrained(directory)
    tokenizer = HuggingFaceTokenizer(
        directory, recipe.model.vocabulary_size, datetime.fromtimestamp(0, UTC)
    )
    weights = directory / "model.safetensors"
    cold_start(
        Solved(recipe, tokenizer),
        recipe.model,
        seed,
        weights,
        teacher=Unsure(recipe, tokenizer),
        target_accuracy=target_accuracy,
        learning_rate=LEARNING_RATE,
        batch_problems=BATCH_PROBLEMS,
        problems_measured=PROBLEMS_MEASURED,
        check_every_steps=CHECK_EVERY_STEPS,
    )


def make_tokenizer(recipe: Recipe, seed: int) -> PreTrainedTokenizerFast:
    """Return a byte-level BPE tokenizer with a chat template, trained on the recipe's task.

    It has at most as many tokens as the recipe's model; ``seed`` draws the texts. Raises
    ``ValueError`` for a task without known solutions.
    """
    draws = Rng(seed.to_bytes(8, "big")).child("tokenizer")
    texts = (solution_of(recipe.environment, draws.bits64()) for _ in range(TEXTS))
    bare = Tokenizer(models.BPE())
    bare.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bare.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=recipe.model.vocabulary_size,
        special_tokens=[PADDING, START, END],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    framed = (f"user\n{text.question}\nassistant\n{text.answer}" for text in texts)
    bare.train_from_iterator(framed, trainer)
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=bare, eos_token=END, pad_token=PADDING, chat_template=CHAT_TEMPLATE
    )

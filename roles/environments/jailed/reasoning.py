"""Questions and scores of reasoning-gym."""

from typing import Any

import reasoning_gym
from reasoning_gym.utils import extract_answer


def check(question: Any) -> Any:
    """Return the question of a data set's seed, or the scores of ``answers`` to it, 0 to 1."""
    dataset = dataset_of(question)
    entry = dataset[0]
    if "answers" not in question:
        return entry["question"]
    return [
        float(dataset.score_answer(extract_answer(answer), entry)) for answer in question["answers"]
    ]


def dataset_of(question: Any) -> Any:
    """Return a data set of one entry, which its seed determines."""
    options = question["options"]
    return reasoning_gym.create_dataset(
        question["dataset"], seed=question["seed"], size=1, **options
    )

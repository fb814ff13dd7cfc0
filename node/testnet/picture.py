"""``reward.png``: the reward curve, drawn in a child because importing matplotlib takes 2 s."""

from collections.abc import Sequence
from pathlib import Path

from protocol.rollout.evaluation import EvaluationPoint


def draw_reward(
    rewards: list[tuple[int, float]],
    evaluation: Sequence[EvaluationPoint],
    greedy_eval_last: float | None,
    title: str,
    path: Path,
) -> None:
    """Draw the mean reward by policy version, with its evaluations.

    These are rewards on held-out problems with 95 % intervals, and the greedy accuracy of the last
    version.
    """
    import matplotlib as mpl  # noqa: PLC0415 - slow; the testnet's process imports this module

    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415 - after the backend is chosen
    from matplotlib.ticker import MaxNLocator  # noqa: PLC0415 - as above

    figure, axes = plt.subplots(figsize=(8, 4.2), dpi=150)
    versions = [version for version, _ in rewards]
    means = [reward for _, reward in rewards]
    axes.plot(versions, means, color="#9cc9d1", linewidth=1, label="mean of the batch")
    axes.plot(versions, _smoothed(means), color="#1f7a8c", linewidth=2.2, label="five-batch mean")
    if evaluation:
        held_out = [one.reward_mean for one in evaluation]
        below = [one.reward_mean - one.reward_low for one in evaluation]
        above = [one.reward_high - one.reward_mean for one in evaluation]
        axes.errorbar(
            [one.version for one in evaluation],
            held_out,
            yerr=[below, above],
            fmt="o",
            color="#3d405b",
            capsize=3,
            label="held-out problems, 95 %",
        )
    if greedy_eval_last is not None and versions:
        label = "greedy, last version"
        axes.scatter([versions[-1]], [greedy_eval_last], color="#e07a5f", zorder=3, label=label)
    axes.set_ylim(min([0.0, *means]), 1.03)  # a length penalty may exceed the task's reward
    axes.set_xlim(left=-0.5)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("policy version")
    axes.set_ylabel("reward of certified rollouts")
    axes.set_title(title, loc="left", fontsize=11)
    axes.grid(visible=True, alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    if versions:
        axes.legend(loc="lower right", frameon=False)
    figure.tight_layout()
    figure.savefig(path)


def _smoothed(values: list[float], window: int = 5) -> list[float]:
    return [
        sum(values[max(0, end - window) : end]) / len(values[max(0, end - window) : end])
        for end in range(1, len(values) + 1)
    ]

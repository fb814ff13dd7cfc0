"""Loss of a training step: the objective of an answer's tokens, and their weights in the mean.

``docs/losses.md`` has the formulas, and the names of the same settings in other trainers.
"""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from protocol.run.sections import LEFT_OUT_WHEN_EMPTY, RecipeModel, Share


class LossSection(RecipeModel):
    """Loss of a step. Ratios are of the trained policy's to the generating policy's probability."""

    kind: Literal["grpo", "gspo", "cispo", "dppo_tv", "dppo_kl"]
    """Objective of a token.

    ``grpo`` clips the token's ratio, ``gspo`` the ratio of the whole answer. ``cispo`` clips the
    weight of the token's gradient and drops none. ``dppo_tv`` and ``dppo_kl`` drop tokens whose
    probability has moved too far, by its difference or by a divergence.
    """
    epsilon: Share
    """Trust region below: the ratio counts from 1 - epsilon. For ``dppo`` the largest divergence of
    a token with a negative advantage."""
    epsilon_high: Annotated[
        float | None, Field(gt=0, le=1000, examples=[0.28]), LEFT_OUT_WHEN_EMPTY
    ] = None
    """Trust region above: the ratio counts up to 1 + epsilon_high, or ``epsilon`` without the key.
    For ``dppo`` the largest divergence of a token with a positive advantage."""
    delta: Annotated[float | None, Field(gt=1, le=1000, examples=[4.0]), LEFT_OUT_WHEN_EMPTY] = None
    """Largest ratio of a token: of one with a negative advantage for ``grpo`` and ``gspo``
    (two-sided clipping), of any for ``dppo``; not for ``cispo``."""
    aggregation: Literal["token", "sequence", "constant"] = "token"
    """Weights of the mean loss.

    ``token`` divides the sum by the tokens that the update learns from. ``sequence`` averages the
    mean losses of answers. ``constant`` divides the sum by the answers of ``rollouts_per_step``
    rollouts, over ``updates_per_version``, times ``sampling.tokens_max``.
    """
    advantage: Literal["group", "mean"] = "group"
    """Advantage of an answer: its reward less the mean of its group; ``group`` divides it by the
    standard deviation of the group's rewards."""
    importance_cap: Annotated[
        float | None, Field(ge=1, le=1000, examples=[2.0]), LEFT_OUT_WHEN_EMPTY
    ] = None
    """Largest weight of a token in truncated importance sampling; without the key there is none.

    Ratios are then to the policy at the start of the step, and each token has a weight: the ratio
    of that policy to the generating one.
    """
    mask_truncated: bool = False
    """Leave out answers without an end token; they still count in the mean of their group."""
    entropy_coefficient: Share = 0.0
    """Weight of the entropy bonus; 0: no bonus."""
    kl_coefficient: Share = 0.0
    """Weight of the divergence from the genesis policy, in nats (estimator k3); 0: none."""
    log_ratio_coefficient: Share = 0.0
    """Weight of the squared logarithm of each token's ratio to the generating policy; 0: none."""

    @property
    def upper_epsilon(self) -> float:
        """The trust region above."""
        return self.epsilon if self.epsilon_high is None else self.epsilon_high

    @model_validator(mode="after")
    def _check(self) -> Self:
        kind, delta = self.kind, self.delta
        if kind == "cispo" and delta is not None:
            raise ValueError("cispo bounds the ratio by epsilon_high; leave delta out")
        if kind != "cispo" and delta is None:
            raise ValueError(f"{kind} needs delta, the largest ratio of a token")
        if kind in {"grpo", "gspo"} and delta is not None and delta <= 1 + self.upper_epsilon:
            raise ValueError("delta must exceed 1 + epsilon_high, which bounds the ratio otherwise")
        if kind == "gspo" and self.aggregation != "sequence":
            raise ValueError('gspo needs aggregation = "sequence": its ratio is of a whole answer')
        if kind.startswith("dppo") and self.importance_cap is not None:
            raise ValueError(
                f"{kind} compares with the generating policy: leave importance_cap out"
            )
        return self

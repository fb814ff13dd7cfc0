import pytest

from roles.runtime.training_steps import TrainingStep


@pytest.fixture
def steps():
    """Return steps 1 to 6: the third used no rollout, the fifth is another trainer's."""
    made = [
        TrainingStep(
            version,
            1_700_000_000.0 + version,
            reward_mean=version / 8,
            sequences_offered=64,
            sequences_used=48,
            gradient_norm=1.5,
            learning_rate=1e-5,
        )
        for version in range(1, 7)
    ]
    made[2] = TrainingStep(3, 1_700_000_003.0, 0.0, sequences_offered=64, sequences_used=0)
    made[4] = TrainingStep(5, 1_700_000_005.0, 0.25)
    return made

"""Random durations, from the distributions that measurements of peer-to-peer networks use."""

import math

from protocol.rng import Rng
from simulations.scenario.plans import Duration, Exponential, Weibull


def draw_seconds(duration: Duration, rng: Rng) -> float:
    """Draw a duration, rounded to milliseconds so that no platform's last digit matters."""
    return round(_draw(duration, rng), 3)


def _draw(duration: Duration, rng: Rng) -> float:
    if isinstance(duration, Exponential):
        return -duration.mean_seconds * math.log(1 - rng.uniform())
    if isinstance(duration, Weibull):
        spread = -math.log(1 - rng.uniform())
        return duration.scale_seconds * float(spread ** (1 / duration.shape))
    return duration.seconds[int(rng.uniform() * len(duration.seconds))]

"""How fast weights move at each step."""

from __future__ import annotations

import math

from leftward.settings import Training


def rate_at(step: int, training: Training) -> float:
    """The learning rate of a step, counted from 1: up in a line while it warms up, then down.

    `inverse-root` falls with the root of the step; `cosine` falls along half a wave to a tenth of the peak at the last
    step.

    >>> training = Training(
    ...     steps=100, batch_tokens=1, learning_rate=1.0, warm_up=4, validate_every=1, save_every=1
    ... )
    >>> [rate_at(step, training) for step in (1, 4, 16, 100)]
    [0.25, 1.0, 0.5, 0.2]
    """
    peak, warm_up = training.learning_rate, training.warm_up
    if step <= warm_up:
        return peak * step / warm_up
    if training.schedule == "inverse-root":
        return peak * math.sqrt(max(warm_up, 1) / step)
    share = (step - warm_up) / max(training.steps - warm_up, 1)
    return peak * (0.1 + 0.45 * (1 + math.cos(math.pi * min(share, 1.0))))

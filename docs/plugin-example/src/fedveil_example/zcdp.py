"""The calibration ``zcdp``: the noise that zero-concentrated differential privacy asks for."""

from __future__ import annotations

import math

from fedveil.privacy import StepCalibration, StepRequest, zcdp_rho

__all__ = ["ZCDP", "sigma"]


def sigma(request: StepRequest) -> float:
    """Noise of one step when the budget is kept in zCDP (Bun & Steinke 2016), as many publications do.

    The largest rho that implies (epsilon, delta) is split evenly over the T steps, and a step with rho/T needs
    sigma = sensitivity sqrt(T/(2 rho)). FedVeil accounts exactly, and so finds that less than epsilon was spent: use it
    to compare with results under zCDP, and ``uniform`` to train.
    """
    return (
        request.sensitivity
        / math.sqrt(2 * zcdp_rho(request.epsilon, request.delta))
        * request.steps_per_release
    )


ZCDP = StepCalibration("record", sigma)

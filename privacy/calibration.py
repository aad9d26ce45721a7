"""Noise of one release from its epsilon, delta and the contribution of the private attributes (FedSVA).

FedSVA (arXiv 2503.12958) gives client i with n_i records, clip norm C and contribution R_i in [0, 1]

    T_i = R_i + 2 ln(1/delta),    sigma_i = 2 C sqrt(max(T_i, beta_i)) / (epsilon n_i)

on the mean of the clipped gradients. When one record is replaced, the classical Gaussian proof (for
epsilon <= 1) makes it (epsilon, delta'_i)-DP with delta'_i = 1.25 exp(-max(T_i, beta_i)/2). The calibrations
other than ``paper`` are derived here.
"""

import math
import sys
from dataclasses import dataclass
from typing import Literal, get_args

from fedveil.privacy.domain import (
    check_attribute_clip_norm,
    non_negative,
    one_of,
    positive,
    probability,
    share,
    warn_weak_delta,
    whole,
)
from fedveil.privacy.gaussian import gaussian_delta, gaussian_mu

Calibration = Literal["paper", "tight", "uniform", "attribute"]

# A measured contribution near 0 would clip away everything the private attributes add.
LEAST_CONTRIBUTION = 0.05


@dataclass(frozen=True, slots=True)
class NoiseCalibration:
    """Noise of one release and what it is worth.

    Parameters
    ----------
    sigma : float
        Standard deviation of the noise on each coordinate of the mean.
    sensitivity : float
        L2 sensitivity of the mean under the relation of the calibration: 2 C_p/n for ``attribute`` (private
        attributes of one record replaced), else 2 C/n (one record replaced).
    mu : float
        sensitivity/sigma, the Gaussian privacy parameter under that relation.
    mu_record : float
        2 C/(n sigma), the same under one record replaced.
    delta_nominal : float
        delta the calibration states: delta' for ``paper`` and ``tight``, else the delta asked for.
    delta_exact : float
        delta(epsilon; mu) that the noise really gives, rounded up.
    tolerance : float
        T = R + 2 ln(1/delta), with R = 1 for ``uniform``.
    clip_norm : float
        C.
    attribute_clip_norm : float or None
        C_p; None except for ``attribute``.
    calibration : {"paper", "tight", "uniform", "attribute"}
        Which rule gave it.
    """

    sigma: float
    sensitivity: float
    mu: float
    mu_record: float
    delta_nominal: float
    delta_exact: float
    tolerance: float
    clip_norm: float
    attribute_clip_norm: float | None
    calibration: Calibration


def calibrate_noise(
    *,
    clip_norm: float,
    epsilon: float,
    num_records: int,
    delta: float,
    contribution: float = 1.0,
    beta: float = 0.0,
    calibration: Calibration = "uniform",
    attribute_clip_norm: float | None = None,
) -> NoiseCalibration:
    """Noise on the mean of a client's clipped gradients for ONE release.

    Parameters
    ----------
    clip_norm : float
        C > 0, L2 bound on each record's gradient.
    epsilon, delta : float
        Privacy of this release, in (0, inf) and (0, 1), under one record replaced; for ``attribute``, under
        the private attributes of one record replaced. delta above 1/n gives a `WeakDelta` warning.
    num_records : int
        n >= 1, public.
    contribution : float
        R in [0, 1], share of the model's utility due to the private attributes. Nothing is proven unless R is
        public or itself released with noise.
    beta : float
        Lower bound >= 0 on the tolerance, for ``paper`` and ``tight``.
    calibration : {"paper", "tight", "uniform", "attribute"}
        ``paper``: sigma as published. ``tight``: the analytic Gaussian at the published (epsilon, delta').
        ``uniform``: the analytic Gaussian at (epsilon, delta), whatever R. ``attribute``: the same for the
        sensitivity 2 C_p/n of the private attributes.
    attribute_clip_norm : float, optional
        C_p in (0, C] for ``attribute``; max(R, 0.05) C when left out.

    Returns
    -------
    NoiseCalibration
        sigma falls with epsilon, delta and n, and grows with C, R and beta.

    Raises
    ------
    ValueError
        When an argument is outside its range or contradicts another, or the delta' of ``tight`` reaches 1.
    """
    one_of("calibration", calibration, get_args(Calibration))
    clip_norm, epsilon = positive("clip_norm", clip_norm), positive("epsilon", epsilon)
    n, delta = whole("num_records", num_records, minimum=1), probability("delta", delta)
    contribution, beta = share("contribution", contribution), non_negative("beta", beta)
    if calibration == "attribute":
        if attribute_clip_norm is None:
            attribute_clip_norm = max(contribution, LEAST_CONTRIBUTION) * clip_norm
        attribute_clip_norm = check_attribute_clip_norm(attribute_clip_norm, clip_norm)
    elif attribute_clip_norm is not None:
        raise ValueError(
            f"attribute_clip_norm = {attribute_clip_norm!r} contradicts calibration {calibration!r}: "
            "leave it out or use calibration 'attribute'."
        )
    warn_weak_delta(delta, n)

    tolerance = (1.0 if calibration == "uniform" else contribution) - 2 * math.log(delta)
    sensitivity = 2 * (clip_norm if attribute_clip_norm is None else attribute_clip_norm) / n
    delta_nominal = delta
    if calibration in ("paper", "tight"):
        # The floor keeps a huge beta calibratable; it asks for more noise than no floor would refuse.
        delta_nominal = max(1.25 * math.exp(-max(tolerance, beta) / 2), sys.float_info.min)
    if calibration == "paper":
        sigma = 2 * clip_norm * math.sqrt(max(tolerance, beta)) / (epsilon * n)
    elif delta_nominal >= 1:
        raise ValueError(
            f"delta = {delta:g} gives a published delta' of {delta_nominal:.3g}, which protects nothing: "
            "give a delta below 0.8."
        )
    else:
        sigma = sensitivity / gaussian_mu(epsilon, delta_nominal)
    return NoiseCalibration(
        sigma=sigma,
        sensitivity=sensitivity,
        mu=sensitivity / sigma,
        mu_record=2 * clip_norm / (n * sigma),
        delta_nominal=delta_nominal,
        delta_exact=gaussian_delta(epsilon, sensitivity / sigma),
        tolerance=tolerance,
        clip_norm=clip_norm,
        attribute_clip_norm=attribute_clip_norm,
        calibration=calibration,
    )

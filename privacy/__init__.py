"""Privacy mathematics: what a release costs, what a ledger proves, how much noise a budget needs."""

from fedveil.privacy.calibration import (
    LEAST_CONTRIBUTION,
    Calibration,
    NoiseCalibration,
    calibrate_noise,
)
from fedveil.privacy.calibrations import CALIBRATIONS, StepCalibration, StepRequest, contribution_effect
from fedveil.privacy.contribution import (
    Contribution,
    ContributionKind,
    ContributionRelease,
    plan_contribution,
)
from fedveil.privacy.convergence import (
    ConvergenceBound,
    StepTooLarge,
    convergence_bound,
    softmax_smoothness,
)
from fedveil.privacy.domain import WeakDelta
from fedveil.privacy.filter import BudgetExceeded, PrivacyFilter, squared_mu
from fedveil.privacy.gaussian import compose_mu, gaussian_delta, gaussian_epsilon, gaussian_mu
from fedveil.privacy.known import NOTHING, Known
from fedveil.privacy.ledger import Guarantee, Ledger, rounded_up
from fedveil.privacy.mechanism import StepMechanism, budgets, plan_step
from fedveil.privacy.plan import ClipRule, NoisePlan, Plan, split_budget
from fedveil.privacy.quantile import LEAST_SHARE_OF_CLIP, QuantileRelease, next_attribute_clip_norm
from fedveil.privacy.release import RELATIONS, Chosen, Relation, Release, gradient_rows, rows_under
from fedveil.privacy.sampled_shapley import SampledShapley, draw_permutations, sampled_shapley
from fedveil.privacy.shapley import (
    MAX_EXACT,
    contribution_rate,
    shapley_sensitivity,
    shapley_values,
)
from fedveil.privacy.subsampled import composed_epsilon, subsampled_epsilon, subsampled_noise_multiplier
from fedveil.privacy.weights import noise_aware_weight
from fedveil.privacy.zcdp import zcdp_epsilon, zcdp_rho

__all__ = [
    "CALIBRATIONS",
    "LEAST_CONTRIBUTION",
    "LEAST_SHARE_OF_CLIP",
    "MAX_EXACT",
    "NOTHING",
    "RELATIONS",
    "BudgetExceeded",
    "Calibration",
    "Chosen",
    "ClipRule",
    "Contribution",
    "ContributionKind",
    "ContributionRelease",
    "ConvergenceBound",
    "Guarantee",
    "Known",
    "Ledger",
    "NoiseCalibration",
    "NoisePlan",
    "Plan",
    "PrivacyFilter",
    "QuantileRelease",
    "Relation",
    "Release",
    "SampledShapley",
    "StepCalibration",
    "StepMechanism",
    "StepRequest",
    "StepTooLarge",
    "WeakDelta",
    "budgets",
    "calibrate_noise",
    "compose_mu",
    "composed_epsilon",
    "contribution_effect",
    "contribution_rate",
    "convergence_bound",
    "draw_permutations",
    "gaussian_delta",
    "gaussian_epsilon",
    "gaussian_mu",
    "gradient_rows",
    "next_attribute_clip_norm",
    "noise_aware_weight",
    "plan_contribution",
    "plan_step",
    "rounded_up",
    "rows_under",
    "sampled_shapley",
    "shapley_sensitivity",
    "shapley_values",
    "softmax_smoothness",
    "split_budget",
    "squared_mu",
    "subsampled_epsilon",
    "subsampled_noise_multiplier",
    "zcdp_epsilon",
    "zcdp_rho",
]

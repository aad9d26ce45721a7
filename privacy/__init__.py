"""Privacy mathematics: what a release costs, what a ledger proves, how much noise a budget needs."""

from fedveil.privacy.calibration import (
    LEAST_CONTRIBUTION,
    Calibration,
    NoiseCalibration,
    calibrate_noise,
)
from fedveil.privacy.calibrations import CALIBRATIONS, StepCalibration, StepRequest, contribution_effect
from fedveil.privacy.cohort_release import CohortRelease, participations, worst_mu
from fedveil.privacy.confidence_region import Region, confidence_region
from fedveil.privacy.contribution import (
    CONTRIBUTION,
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
from fedveil.privacy.correction import Correction, averaged
from fedveil.privacy.directions import check_directions, draw_directions
from fedveil.privacy.domain import WeakDelta
from fedveil.privacy.filter import BudgetExceeded, PrivacyFilter, squared_mu
from fedveil.privacy.fisher import modulated_fisher_information
from fedveil.privacy.gaussian import compose_mu, gaussian_delta, gaussian_epsilon, gaussian_mu
from fedveil.privacy.inference import (
    Intervals,
    asymptotic_covariance,
    confidence_intervals,
    least_squares_bias,
)
from fedveil.privacy.known import NOTHING, Known
from fedveil.privacy.ledger import Guarantee, Ledger, rounded_up
from fedveil.privacy.loss_moments import LossMoments
from fedveil.privacy.mechanism import StepMechanism, budgets, plan_step
from fedveil.privacy.membership import FEW_CANDIDATES, MembershipIndicator, membership_indicator
from fedveil.privacy.membership_candidates import distinct_candidates, leading_candidates
from fedveil.privacy.membership_interval import (
    LEAST_CLIENTS,
    LEAST_RECORDS,
    MembershipInterval,
    membership_interval,
    record_interval,
)
from fedveil.privacy.membership_plan import LossReleases
from fedveil.privacy.membership_release import (
    LOSS_DIFFERENCES,
    LossRelease,
    clipped_differences,
    public_clip_norm,
)
from fedveil.privacy.membership_released import ReleasedIndicator, ReleasedMoments, release_deviation
from fedveil.privacy.membership_released_interval import released_interval
from fedveil.privacy.message_plan import (
    MODULATED_MESSAGE,
    RANGE_MESSAGE,
    Accounting,
    MessagePlan,
    plan_gradients,
    plan_messages,
)
from fedveil.privacy.modulation import (
    Modulation,
    SensitivityRule,
    modulate,
    modulated,
    modulation_sensitivity,
)
from fedveil.privacy.moments import ModulatedMoments, NotAdditive
from fedveil.privacy.normal_equations import NormalEquations, NotIdentified
from fedveil.privacy.one_shot import Estimate, least_squares, one_shot
from fedveil.privacy.plan import ClipRule, NoisePlan, Plan, split_budget
from fedveil.privacy.projected_descent import descend, gradient, projected_step
from fedveil.privacy.quantile import LEAST_SHARE_OF_CLIP, QUANTILE, QuantileRelease, next_attribute_clip_norm
from fedveil.privacy.reconstruction import ReconstructionBound, reconstruction_bound
from fedveil.privacy.regularisation import Spectrum, regularised, regularised_spectrum
from fedveil.privacy.release import (
    BOUNDED_BY,
    CENTRAL_UPDATE,
    GRADIENT,
    RELATIONS,
    Chosen,
    Relation,
    Release,
    gradient_rows,
    rows_under,
)
from fedveil.privacy.sampled_shapley import SampledShapley, draw_permutations, sampled_shapley
from fedveil.privacy.score_covariance import Target, score_covariance
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
    "BOUNDED_BY",
    "CALIBRATIONS",
    "CENTRAL_UPDATE",
    "CONTRIBUTION",
    "FEW_CANDIDATES",
    "GRADIENT",
    "LEAST_CLIENTS",
    "LEAST_CONTRIBUTION",
    "LEAST_RECORDS",
    "LEAST_SHARE_OF_CLIP",
    "LOSS_DIFFERENCES",
    "MAX_EXACT",
    "MODULATED_MESSAGE",
    "NOTHING",
    "QUANTILE",
    "RANGE_MESSAGE",
    "RELATIONS",
    "Accounting",
    "BudgetExceeded",
    "Calibration",
    "Chosen",
    "ClipRule",
    "CohortRelease",
    "Contribution",
    "ContributionKind",
    "ContributionRelease",
    "ConvergenceBound",
    "Correction",
    "Estimate",
    "Guarantee",
    "Intervals",
    "Known",
    "Ledger",
    "LossMoments",
    "LossRelease",
    "LossReleases",
    "MembershipIndicator",
    "MembershipInterval",
    "MessagePlan",
    "ModulatedMoments",
    "Modulation",
    "NoiseCalibration",
    "NoisePlan",
    "NormalEquations",
    "NotAdditive",
    "NotIdentified",
    "Plan",
    "PrivacyFilter",
    "QuantileRelease",
    "ReconstructionBound",
    "Region",
    "Relation",
    "Release",
    "ReleasedIndicator",
    "ReleasedMoments",
    "SampledShapley",
    "SensitivityRule",
    "Spectrum",
    "StepCalibration",
    "StepMechanism",
    "StepRequest",
    "StepTooLarge",
    "Target",
    "WeakDelta",
    "asymptotic_covariance",
    "averaged",
    "budgets",
    "calibrate_noise",
    "check_directions",
    "clipped_differences",
    "compose_mu",
    "composed_epsilon",
    "confidence_intervals",
    "confidence_region",
    "contribution_effect",
    "contribution_rate",
    "convergence_bound",
    "descend",
    "distinct_candidates",
    "draw_directions",
    "draw_permutations",
    "gaussian_delta",
    "gaussian_epsilon",
    "gaussian_mu",
    "gradient",
    "gradient_rows",
    "leading_candidates",
    "least_squares",
    "least_squares_bias",
    "membership_indicator",
    "membership_interval",
    "modulate",
    "modulated",
    "modulated_fisher_information",
    "modulation_sensitivity",
    "next_attribute_clip_norm",
    "noise_aware_weight",
    "one_shot",
    "participations",
    "plan_contribution",
    "plan_gradients",
    "plan_messages",
    "plan_step",
    "projected_step",
    "public_clip_norm",
    "reconstruction_bound",
    "record_interval",
    "regularised",
    "regularised_spectrum",
    "release_deviation",
    "released_interval",
    "rounded_up",
    "rows_under",
    "sampled_shapley",
    "score_covariance",
    "shapley_sensitivity",
    "shapley_values",
    "softmax_smoothness",
    "split_budget",
    "squared_mu",
    "subsampled_epsilon",
    "subsampled_noise_multiplier",
    "worst_mu",
    "zcdp_epsilon",
    "zcdp_rho",
]

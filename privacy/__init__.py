"""Privacy mathematics: what a release costs, what a ledger proves, how much noise a budget needs."""

from fedveil.privacy.calibration import Calibration, NoiseCalibration, calibrate_noise
from fedveil.privacy.domain import WeakDelta
from fedveil.privacy.filter import BudgetExceeded, PrivacyFilter, squared_mu
from fedveil.privacy.gaussian import compose_mu, gaussian_delta, gaussian_epsilon, gaussian_mu
from fedveil.privacy.ledger import Guarantee, Ledger, rounded_up
from fedveil.privacy.mechanism import StepCalibration, StepMechanism, budgets, plan_step
from fedveil.privacy.release import RELATIONS, Chosen, Relation, Release, rows_under
from fedveil.privacy.subsampled import composed_epsilon, subsampled_epsilon, subsampled_noise_multiplier
from fedveil.privacy.zcdp import zcdp_epsilon, zcdp_rho

__all__ = [
    "RELATIONS",
    "BudgetExceeded",
    "Calibration",
    "Chosen",
    "Guarantee",
    "Ledger",
    "NoiseCalibration",
    "PrivacyFilter",
    "Relation",
    "Release",
    "StepCalibration",
    "StepMechanism",
    "WeakDelta",
    "budgets",
    "calibrate_noise",
    "compose_mu",
    "composed_epsilon",
    "gaussian_delta",
    "gaussian_epsilon",
    "gaussian_mu",
    "plan_step",
    "rounded_up",
    "rows_under",
    "squared_mu",
    "subsampled_epsilon",
    "subsampled_noise_multiplier",
    "zcdp_epsilon",
    "zcdp_rho",
]

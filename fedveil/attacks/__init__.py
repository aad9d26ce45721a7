"""Audits: attacks run on the real code, to refute a claim of privacy or fail to."""

from fedveil.attacks.attack_scores import (
    AttackSuccess,
    RateAtFalsePositives,
    attack_success,
    clopper_pearson,
)
from fedveil.attacks.likelihood_ratio import (
    LikelihoodRatioAudit,
    audit_likelihood_ratio,
    clopper_pearson_upper,
    log_likelihood_ratio,
)
from fedveil.attacks.lira import lira_scores, lira_scores_each, logit_confidence
from fedveil.attacks.loss_threshold import LossThreshold, attack_by_loss, choose_loss_threshold
from fedveil.attacks.membership_security import (
    MembershipSecurity,
    measure_membership_security,
    membership_total_variation,
)

__all__ = [
    "AttackSuccess",
    "LikelihoodRatioAudit",
    "LossThreshold",
    "MembershipSecurity",
    "RateAtFalsePositives",
    "attack_by_loss",
    "attack_success",
    "audit_likelihood_ratio",
    "choose_loss_threshold",
    "clopper_pearson",
    "clopper_pearson_upper",
    "lira_scores",
    "lira_scores_each",
    "log_likelihood_ratio",
    "logit_confidence",
    "measure_membership_security",
    "membership_total_variation",
]

"""Audits: attacks run on the real code, to refute a claim of privacy or fail to."""

from fedveil.attacks.likelihood_ratio import (
    LikelihoodRatioAudit,
    audit_likelihood_ratio,
    clopper_pearson_upper,
    log_likelihood_ratio,
)

__all__ = [
    "LikelihoodRatioAudit",
    "audit_likelihood_ratio",
    "clopper_pearson_upper",
    "log_likelihood_ratio",
]

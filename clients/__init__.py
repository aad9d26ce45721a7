"""Client side: what a node does with the records of its logical clients.

Names are imported when they are first used, so that a node without networks does not wait for torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedveil.clients.cohort import Cohort, CohortResult
    from fedveil.clients.contribution import mask_utilities, split_validation
    from fedveil.clients.gradients import attribute_mean_and_share, clipped_mean
    from fedveil.clients.loss_release import LossNode, handle_losses
    from fedveil.clients.meter import ContributionMeter, Measured
    from fedveil.clients.modulated_cohort import ModulatedCohort, ModulatedResult
    from fedveil.clients.modulated_replies import handle_identify_modulated, handle_message
    from fedveil.clients.modulated_variant import VariantPlan
    from fedveil.clients.replies import handle_identify, handle_train, make_train_reply
    from fedveil.clients.retraining import retrain_utilities
    from fedveil.clients.training import ClientData, LocalStepFailed, LocalUpdate, local_update

__all__ = [
    "ClientData",
    "Cohort",
    "CohortResult",
    "ContributionMeter",
    "LocalStepFailed",
    "LocalUpdate",
    "LossNode",
    "Measured",
    "ModulatedCohort",
    "ModulatedResult",
    "VariantPlan",
    "attribute_mean_and_share",
    "clipped_mean",
    "handle_identify",
    "handle_identify_modulated",
    "handle_losses",
    "handle_message",
    "handle_train",
    "local_update",
    "make_train_reply",
    "mask_utilities",
    "retrain_utilities",
    "split_validation",
]

_MODULES = {
    "cohort": ("Cohort", "CohortResult"),
    "contribution": ("mask_utilities", "split_validation"),
    "gradients": ("attribute_mean_and_share", "clipped_mean"),
    "loss_release": ("LossNode", "handle_losses"),
    "meter": ("ContributionMeter", "Measured"),
    "modulated_cohort": ("ModulatedCohort", "ModulatedResult"),
    "modulated_replies": ("handle_identify_modulated", "handle_message"),
    "modulated_variant": ("VariantPlan",),
    "replies": ("handle_identify", "handle_train", "make_train_reply"),
    "retraining": ("retrain_utilities",),
    "training": ("ClientData", "LocalStepFailed", "LocalUpdate", "local_update"),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> object:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

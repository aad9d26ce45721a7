"""Client side: what a node does with the records of its logical clients."""

from fedveil.clients.cohort import Cohort, CohortResult
from fedveil.clients.contribution import mask_utilities, split_validation
from fedveil.clients.gradients import attribute_mean_and_share, clipped_mean
from fedveil.clients.meter import ContributionMeter, Measured
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
    "Measured",
    "attribute_mean_and_share",
    "clipped_mean",
    "handle_identify",
    "handle_train",
    "local_update",
    "make_train_reply",
    "mask_utilities",
    "retrain_utilities",
    "split_validation",
]

"""Client side: what a node does with the records of its logical clients."""

from fedveil.clients.cohort import Cohort, CohortResult
from fedveil.clients.gradients import attribute_clipped_mean, clipped_mean
from fedveil.clients.replies import handle_identify, handle_train, make_train_reply
from fedveil.clients.training import ClientData, LocalUpdate, local_update

__all__ = [
    "ClientData",
    "Cohort",
    "CohortResult",
    "LocalUpdate",
    "attribute_clipped_mean",
    "clipped_mean",
    "handle_identify",
    "handle_train",
    "local_update",
    "make_train_reply",
]

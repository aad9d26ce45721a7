"""Server side: how replies become a model."""

from fedveil.strategies.agenda import Agenda
from fedveil.strategies.aggregation import CentralMechanism, central_update, weighted_mean
from fedveil.strategies.fleet import Fleet, FleetError, identify
from fedveil.strategies.knowledge import Knowledge
from fedveil.strategies.outcome import RoundOutcome
from fedveil.strategies.private_averaging import NoGoodReplies, PrivateAveraging, to_record
from fedveil.strategies.progress import Progress, weakest_guarantee
from fedveil.strategies.replies import BadReply, Expected, TrainReply, check_reply
from fedveil.strategies.sampling import sample_fixed, sample_poisson
from fedveil.strategies.server_optimizer import ServerOptimizer

__all__ = [
    "Agenda",
    "BadReply",
    "CentralMechanism",
    "Expected",
    "Fleet",
    "FleetError",
    "Knowledge",
    "NoGoodReplies",
    "PrivateAveraging",
    "Progress",
    "RoundOutcome",
    "ServerOptimizer",
    "TrainReply",
    "central_update",
    "check_reply",
    "identify",
    "sample_fixed",
    "sample_poisson",
    "to_record",
    "weakest_guarantee",
    "weighted_mean",
]

"""Server side: how replies become a model."""

from fedveil.strategies.agenda import Agenda
from fedveil.strategies.aggregation import CentralMechanism, central_update, weighted_mean
from fedveil.strategies.census import Census, identify_nodes, identify_sites
from fedveil.strategies.fleet import Fleet, FleetError, identify
from fedveil.strategies.knowledge import Knowledge
from fedveil.strategies.local_dp_sgd import LocalDPSGD
from fedveil.strategies.message_progress import MessageProgress
from fedveil.strategies.message_rounds import Collected, MessageRounds
from fedveil.strategies.modulated_iterative import ModulatedIterative, default_radius
from fedveil.strategies.modulated_one_shot import ModulatedOneShot
from fedveil.strategies.modulated_outcome import ModulatedOutcome
from fedveil.strategies.outcome import RoundOutcome
from fedveil.strategies.private_averaging import NoGoodReplies, PrivateAveraging, to_record
from fedveil.strategies.progress import Progress, weakest_guarantee
from fedveil.strategies.range_round import RangeEstimate, range_round, ranges_of
from fedveil.strategies.replies import BadReply, Expected, TrainReply, check_reply
from fedveil.strategies.sampling import sample_fixed, sample_poisson
from fedveil.strategies.server_optimizer import ServerOptimizer

__all__ = [
    "Agenda",
    "BadReply",
    "Census",
    "CentralMechanism",
    "Collected",
    "Expected",
    "Fleet",
    "FleetError",
    "Knowledge",
    "LocalDPSGD",
    "MessageProgress",
    "MessageRounds",
    "ModulatedIterative",
    "ModulatedOneShot",
    "ModulatedOutcome",
    "NoGoodReplies",
    "PrivateAveraging",
    "Progress",
    "RangeEstimate",
    "RoundOutcome",
    "ServerOptimizer",
    "TrainReply",
    "central_update",
    "check_reply",
    "default_radius",
    "identify",
    "identify_nodes",
    "identify_sites",
    "range_round",
    "ranges_of",
    "sample_fixed",
    "sample_poisson",
    "to_record",
    "weakest_guarantee",
    "weighted_mean",
]

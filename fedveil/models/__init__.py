"""Networks that federated clients train, where they start, and how good they are."""

from fedveil.models.coupling import refuse_record_coupling
from fedveil.models.evaluation import Evaluation, evaluate
from fedveil.models.initial import initial_arrays
from fedveil.models.networks import ModelFactory, build_model, mlp, softmax
from fedveil.models.trial import try_forward, try_gradient

__all__ = [
    "Evaluation",
    "ModelFactory",
    "build_model",
    "evaluate",
    "initial_arrays",
    "mlp",
    "refuse_record_coupling",
    "softmax",
    "try_forward",
    "try_gradient",
]

"""Networks that federated clients train, where they start, and how good they are."""

from fedveil.models.building import ModelFactory, build_learner
from fedveil.models.candidates import candidate_losses
from fedveil.models.coupling import refuse_record_coupling
from fedveil.models.evaluation import Evaluation, evaluate
from fedveil.models.initial import initial_arrays
from fedveil.models.learner import Learner, LocalStep, Loss, gradient_descent
from fedveil.models.networks import cnn, mlp, softmax
from fedveil.models.residual import resnet_18
from fedveil.models.trial import try_forward, try_gradient, try_local_step, try_loss

__all__ = [
    "Evaluation",
    "Learner",
    "LocalStep",
    "Loss",
    "ModelFactory",
    "build_learner",
    "candidate_losses",
    "cnn",
    "evaluate",
    "gradient_descent",
    "initial_arrays",
    "mlp",
    "refuse_record_coupling",
    "resnet_18",
    "softmax",
    "try_forward",
    "try_gradient",
    "try_local_step",
    "try_loss",
]

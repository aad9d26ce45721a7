"""Whether the model that was sent is the one that this node builds."""

from __future__ import annotations

from collections.abc import Mapping

from fedveil.models import Learner

__all__ = ["require_same_model"]


def require_same_model(
    learner: Learner, given: Mapping[str, tuple[int, ...]], what: str = "the model that was sent has"
) -> dict[str, tuple[int, ...]]:
    """Check names and shapes of arrays against those of the model's trainable parameters.

    Parameters
    ----------
    learner : Learner
        The node's own.
    given : mapping of str to tuple
        Names and shapes, in any order.
    what : str
        Whose they are, for the error.

    Returns
    -------
    dict of str to tuple
        The same in the order of the model's parameters, in which noise is drawn.

    Raises
    ------
    ValueError
        If they are not the same.
    """
    parameters = learner.module.named_parameters()
    shapes = {name: tuple(value.shape) for name, value in parameters if value.requires_grad}
    if given != shapes:
        raise ValueError(
            f"{what} arrays {dict(given)}, but this node's model has {shapes}: server and node must build the same "
            "model."
        )
    return shapes

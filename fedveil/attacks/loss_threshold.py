"""The loss-threshold attack: a record with a small loss was probably trained on.

The weakest attack of all, since it knows nothing of how hard a record is; what it finds, everyone can find.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from fedveil.attacks.attack_scores import AttackSuccess, attack_success, finite_scores

__all__ = ["LossThreshold", "attack_by_loss", "choose_loss_threshold"]


@dataclass(frozen=True)
class LossThreshold:
    """A rule that calls records of at most this loss members.

    Attributes
    ----------
    threshold : float
    balanced_accuracy : float
        On the records by which it was chosen, so too large: count its errors on other runs.
    """

    threshold: float
    balanced_accuracy: float

    def accuracy(self, member_losses: ArrayLike, other_losses: ArrayLike) -> float:
        """Balanced accuracy on records of other runs."""
        inside = finite_scores("members", member_losses)
        outside = finite_scores("others", other_losses)
        return float(((inside <= self.threshold).mean() + (outside > self.threshold).mean()) / 2)


def attack_by_loss(
    member_losses: ArrayLike,
    other_losses: ArrayLike,
    *,
    false_positive_rates: Iterable[float] = (0.01, 0.001),
    confidence: float = 0.95,
) -> AttackSuccess:
    """Success of every threshold on the loss: scores are minus the losses.

    Parameters
    ----------
    member_losses, other_losses : arrays of shape (m,) and (k,)
        Losses of one model on records it was trained on and on others of the same kind.
    false_positive_rates, confidence
        As for :func:`~fedveil.attacks.attack_success`.

    Returns
    -------
    AttackSuccess

    Raises
    ------
    ValueError
        As for :func:`~fedveil.attacks.attack_success`.

    Notes
    -----
    Source: Yeom et al. 2018.
    """
    return attack_success(
        -finite_scores("members", member_losses),
        -finite_scores("others", other_losses),
        false_positive_rates=false_positive_rates,
        confidence=confidence,
    )


def choose_loss_threshold(member_losses: ArrayLike, other_losses: ArrayLike) -> LossThreshold:
    """The threshold with the best balanced accuracy on runs of one's own.

    Parameters
    ----------
    member_losses, other_losses : arrays of shape (m,) and (k,)

    Returns
    -------
    LossThreshold
        The smallest of equally good ones; minus infinity, "nobody", where no threshold beats a guess.

    Raises
    ------
    ValueError
        If a loss is NaN or there are fewer than 2 of a kind.
    """
    inside = np.sort(finite_scores("members", member_losses))
    outside = np.sort(finite_scores("others", other_losses))
    candidates = np.concatenate([[-np.inf], np.unique(np.concatenate([inside, outside]))])
    named = np.searchsorted(inside, candidates, side="right") / len(inside)
    accused = np.searchsorted(outside, candidates, side="right") / len(outside)
    best = int(np.argmax(named - accused))
    return LossThreshold(float(candidates[best]), float((1 + named[best] - accused[best]) / 2))

"""Audit of a claim by the best test there is: the likelihood ratio of two neighbouring data sets.

Run the real code many times on a data set and on a neighbour, score every transcript by its likelihood ratio,
and count the errors of a threshold. The errors of a mu-GDP run cannot both be small: that bounds mu from
below with a stated confidence, and a bound above what was claimed refutes the claim. A bound below it proves
nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betaincinv, ndtri

from fedveil.privacy import gaussian_epsilon

__all__ = ["LikelihoodRatioAudit", "audit_likelihood_ratio", "clopper_pearson_upper", "log_likelihood_ratio"]


@dataclass(frozen=True)
class LikelihoodRatioAudit:
    """What an audit found.

    Parameters
    ----------
    mu : float
        Lower bound on the mu of the run, under the neighbouring relation of the two data sets.
    epsilon : float
        Lower bound on epsilon at ``delta``: the Gaussian conversion of ``mu``.
    delta : float
    confidence : float
        Probability with which the bound holds for a run whose trade-off is Gaussian.
    threshold : float
        Scores above it were taken for the neighbour.
    false_positives, false_negatives : int
        Errors on the transcripts that were counted.
    trials, neighbour_trials : int
        Transcripts that were counted, of each data set.
    """

    mu: float
    epsilon: float
    delta: float
    confidence: float
    threshold: float
    false_positives: int
    false_negatives: int
    trials: int
    neighbour_trials: int


def audit_likelihood_ratio(
    scores: ArrayLike,
    neighbour_scores: ArrayLike,
    *,
    delta: float,
    confidence: float = 0.999,
    threshold: float | None = None,
) -> LikelihoodRatioAudit:
    """Bound mu and epsilon of a run from below by the scores of its transcripts.

    Parameters
    ----------
    scores, neighbour_scores : arrays of shape (k,) and (k',)
        Score of each independent transcript on the data set and on its neighbour; larger means more like the
        neighbour, for example :func:`log_likelihood_ratio`.
    delta : float
        In (0, 1).
    confidence : float
        In (0, 1).
    threshold : float, optional
        Chosen before looking at these scores. None: the best on every second transcript, errors counted on
        the rest.

    Returns
    -------
    LikelihoodRatioAudit

    Raises
    ------
    ValueError
        If a score is NaN, there are too few, or ``confidence`` is out of range.

    Notes
    -----
    Any test of a mu-GDP run has false-positive rate a and false-negative rate b with ``mu >= Phi^-1(1 - a) -
    Phi^-1(b)`` (Dong, Roth & Su 2022, equation 6). Both rates are replaced by Clopper-Pearson upper limits
    that fail with probability (1 - confidence)/2 each.
    """
    here, there = np.asarray(scores, dtype=np.float64), np.asarray(neighbour_scores, dtype=np.float64)
    if here.ndim != 1 or there.ndim != 1 or min(len(here), len(there)) < 2:
        raise ValueError(
            f"an audit needs at least 2 scores of each data set, got {here.shape} and {there.shape}."
        )
    if np.isnan(here).any() or np.isnan(there).any():
        raise ValueError("a score is NaN: an audit needs every transcript's score.")
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must be between 0 and 1, got {confidence}.")
    risk = (1 - confidence) / 2
    if threshold is None:
        threshold = _best_threshold(here[::2], there[::2], risk)
        here, there = here[1::2], there[1::2]
    false_positives, false_negatives = int((here > threshold).sum()), int((there <= threshold).sum())
    mu = float(
        _mu_bound(np.array([false_positives]), len(here), np.array([false_negatives]), len(there), risk)[0]
    )
    return LikelihoodRatioAudit(
        mu=mu,
        epsilon=gaussian_epsilon(mu, delta),
        delta=delta,
        confidence=confidence,
        threshold=threshold,
        false_positives=false_positives,
        false_negatives=false_negatives,
        trials=len(here),
        neighbour_trials=len(there),
    )


def log_likelihood_ratio(
    outputs: ArrayLike, mean: ArrayLike, neighbour_mean: ArrayLike, sigma: float
) -> NDArray[np.float64]:
    """Log of the density of N(neighbour_mean, sigma^2 I) over that of N(mean, sigma^2 I).

    Parameters
    ----------
    outputs : array of shape (k, p)
    mean, neighbour_mean : arrays of shape (p,)
    sigma : float
        Positive.

    Returns
    -------
    float64 array of shape (k,)
        Positive where the neighbour explains the output better; sums over independent rounds.

    Raises
    ------
    ValueError
        If ``sigma`` is not positive.
    """
    if not sigma > 0:
        raise ValueError(f"sigma must be positive, got {sigma}.")
    mean, neighbour_mean = np.asarray(mean, dtype=np.float64), np.asarray(neighbour_mean, dtype=np.float64)
    centred = np.asarray(outputs, dtype=np.float64) - (mean + neighbour_mean) / 2
    ratios: NDArray[np.float64] = centred @ (neighbour_mean - mean) / sigma**2
    return ratios


def clopper_pearson_upper(errors: ArrayLike, trials: int, risk: float) -> NDArray[np.float64]:
    """Upper confidence limit of a binomial probability, exact: it fails with probability at most ``risk``.

    Parameters
    ----------
    errors : array of int, between 0 and ``trials``
    trials : int
    risk : float
        In (0, 1).

    Returns
    -------
    float64 array of the shape of ``errors``
        The (1 - risk) quantile of Beta(errors + 1, trials - errors); 1 where every trial was an error.
    """
    count = np.asarray(errors, dtype=np.float64)
    limits = betaincinv(count + 1, np.maximum(trials - count, 1), 1 - risk)
    return np.where(count >= trials, 1.0, limits)


def _mu_bound(
    false_positives: NDArray[np.int64],
    trials: int,
    false_negatives: NDArray[np.int64],
    neighbours: int,
    risk: float,
) -> NDArray[np.float64]:
    rates = (
        clopper_pearson_upper(false_positives, trials, risk),
        clopper_pearson_upper(false_negatives, neighbours, risk),
    )
    bounds: NDArray[np.float64] = np.maximum(-ndtri(rates[0]) - ndtri(rates[1]), 0.0)
    return bounds


def _best_threshold(here: NDArray[np.float64], there: NDArray[np.float64], risk: float) -> float:
    candidates = np.unique(np.concatenate([here, there]))
    false_positives = len(here) - np.searchsorted(np.sort(here), candidates, side="right")
    false_negatives = np.searchsorted(np.sort(there), candidates, side="right")
    bounds = _mu_bound(false_positives, len(here), false_negatives, len(there), risk)
    return float(candidates[int(np.argmax(bounds))])

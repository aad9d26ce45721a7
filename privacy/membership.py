"""The indicator r_Q of how fast a quantized model becomes secure against membership inference.

With theta_1 the candidate of least expected loss (THEORY 3, arXiv 2502.06567),

    r_Q = 1/2 min_{k>1} ( E l(theta_k,z) - E l(theta_1,z) )^2 / Var( l(theta_k,z) - l(theta_1,z) )

A larger r_Q: membership-inference security tends to 1 faster with the number n of training records, with order
1 - exp(-n r_Q). E and Var (denominator n) are over records that were NOT trained on.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedveil.privacy.loss_moments import LossMoments

FEW_CANDIDATES = 8  # with fewer distinct ones a ranking of quantizers says little
_CLOSE = 2.0  # standard errors within which a competitor may be the true minimum
_MANY_CLOSE = 5  # the minimum of five equal competitors lies about one standard error too low


@dataclass(frozen=True, slots=True)
class MembershipIndicator:
    """r_Q of one quantizer, and what is needed to read it.

    Parameters
    ----------
    r_q : float
        In [0, inf]; NaN where undefined (fewer than two candidates whose losses differ, or a single record);
        infinite where every competitor's loss differs from the best one's by a constant.
    best : int
        Candidate of least mean loss.
    runner_up : int or None
        Candidate whose pair with the best sets the minimum, not always the one of second least loss; None where
        undefined.
    gap, deviation : float
        Mean and standard deviation of that pair's difference in loss; NaN where undefined.
    num_candidates, num_distinct : int
        Given, and with different losses.
    num_records : int
        n, records that the losses are of.
    rates : tuple of float
        1/2 gap^2/Var of each candidate with the best; NaN for the best itself and for candidates with the same
        losses as an earlier one.
    """

    r_q: float
    best: int
    runner_up: int | None
    gap: float
    deviation: float
    num_candidates: int
    num_distinct: int
    num_records: int
    rates: tuple[float, ...]

    @property
    def resolution(self) -> float:
        """1/(2n): a difference of one standard error of its mean gives as much."""
        return 1 / (2 * self.num_records)

    @property
    def below_resolution(self) -> bool:
        """Whether r_Q is noise, below 1/(2n)."""
        return self.r_q < self.resolution

    @property
    def close_competitors(self) -> int:
        """Competitors, the runner-up included, that sampling error cannot tell from the one that sets the minimum."""
        if not math.isfinite(self.r_q):
            return 0
        ratios = np.sqrt(2 * np.array(self.rates))
        error = math.sqrt((1 + self.r_q) / self.num_records)  # of gap/deviation, normal differences
        return int(np.sum(ratios <= math.sqrt(2 * self.r_q) + _CLOSE * error))

    @property
    def statement(self) -> str:
        """One sentence to print."""
        basis = f"{self.num_records} records, {self.num_distinct} distinct candidates"
        if math.isnan(self.r_q):
            if self.num_records < 2:
                return "r_Q is undefined: one record has no variance."
            if self.num_candidates == 1:
                return "r_Q is undefined: there is one candidate."
            return f"r_Q is undefined: all {self.num_candidates} candidates have the same losses."
        if math.isinf(self.r_q):
            return f"r_Q is infinite: no competitor ever comes nearer to the best candidate ({basis})."
        pair = f"set by candidate {self.runner_up} against {self.best}"
        if self.below_resolution:
            return f"r_Q < {self.resolution:.3g} = 1/(2n), noise ({pair}; {basis})."
        return f"r_Q = {self.r_q:.4g} ({pair}; {basis})."

    @property
    def warnings(self) -> tuple[str, ...]:
        """Reasons not to trust the number, one sentence each."""
        found = []
        if self.num_distinct < FEW_CANDIDATES:
            found.append(
                f"Only {self.num_distinct} distinct candidates (fewer than {FEW_CANDIDATES}): a ranking of "
                "quantizers by r_Q can be empty of meaning; train for more rounds, or keep more (trajectory)."
            )
        if self.num_distinct < self.num_candidates:
            found.append(
                f"{self.num_candidates - self.num_distinct} of {self.num_candidates} candidates have the losses of "
                "another on every record, and count as one with it."
            )
        if math.isnan(self.r_q):
            return tuple(found)
        if math.isinf(self.r_q):
            found.append(
                f"Zero variance over {self.num_records} records: other records may still tell the candidates apart."
            )
        elif self.below_resolution:
            found.append(
                f"Below 1/(2n) = {self.resolution:.3g} for n = {self.num_records} records: noise; more records "
                "are needed."
            )
        elif self.r_q < _CLOSE**2 * self.resolution:
            found.append(
                f"Within {_CLOSE:g} standard errors of 0 for n = {self.num_records} records: which candidate is "
                "best is not settled."
            )
        if self.close_competitors >= _MANY_CLOSE:
            found.append(
                f"{self.close_competitors} competitors lie within sampling error of the minimum, which is then "
                "biased down: read the interval."
            )
        return tuple(found)


def membership_indicator(moments: LossMoments) -> MembershipIndicator:
    """Compute r_Q from moments of losses on records not trained on.

    Parameters
    ----------
    moments : LossMoments
        Of the candidates of ONE quantizer, on common scales; duplicates change nothing. Added over clients they
        give what the pooled records would.

    Returns
    -------
    MembershipIndicator
        Ties in mean loss go to the lowest index.
    """
    best, competitors = best_and_competitors(moments)
    gaps, variances = moments.gaps[competitors, best], moments.variances[competitors, best]
    defined = len(competitors) > 0 and moments.count > 1
    rates = np.full(moments.num_candidates, math.nan)
    if defined:
        infinite = np.full(len(competitors), math.inf)
        with np.errstate(over="ignore"):
            ratios = np.divide(gaps, np.sqrt(variances), out=infinite, where=variances > 0)
            rates[competitors] = np.square(ratios) / 2
    # among infinite ones the nearest sets the minimum
    place = min(range(len(competitors)), key=lambda k: (rates[competitors[k]], gaps[k])) if defined else None
    return MembershipIndicator(
        r_q=math.nan if place is None else float(rates[competitors[place]]),
        best=best,
        runner_up=None if place is None else int(competitors[place]),
        gap=math.nan if place is None else float(gaps[place]),
        deviation=math.nan if place is None else math.sqrt(variances[place]),
        num_candidates=moments.num_candidates,
        num_distinct=len(competitors) + 1,
        num_records=moments.count,
        rates=tuple(rates.tolist()),
    )


def best_and_competitors(moments: LossMoments) -> tuple[int, NDArray[np.int64]]:
    """The candidate of least mean loss, and all others whose losses differ from it and from one another.

    Returns
    -------
    best : int
    competitors : int64 array
        Increasing; of candidates with the same losses on every record only the first.
    """
    alike = moments.alike
    kept: list[int] = []
    for candidate in range(moments.num_candidates):
        if not alike[candidate, kept].any():
            kept.append(candidate)
    distinct = np.array(kept)
    best = distinct[0]
    for _ in range(2):  # from the nearly best one, gaps are exact to their own rounding
        best = distinct[np.argmin(moments.gaps[distinct, best])]
    return int(best), distinct[distinct != best]

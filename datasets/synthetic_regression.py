"""Made-up records of a linear regression, from none to millions, each made when it is asked for.

Record i is a function of a public seed and of i: a node makes its own share and holds no other. The model is known, so
estimates can be compared with the truth. Everything here is public; only the noise of a private run is not.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedveil.datasets.attributes import nearest
from fedveil.datasets.regression import RegressionData, RegressionRecords, RegressionSchema, rows_of
from fedveil.datasets.request import DataRequest
from fedveil.datasets.split import public_streams
from fedveil.privacy.domain import finite, non_negative, whole
from fedveil.streams import normals_from, uniforms_from

__all__ = ["SyntheticRegression", "load"]

_NAME = "synthetic-regression"
_INTERCEPT = 1.0
_MOST_FEATURES = 10_000  # a slip of the finger must not fill the memory
_MOST_TEST = 10_000  # records of the test set: the standard error of R^2 is then below 0.01
_CHUNK = 1 << 19  # random words at a time
_RANGE = 4.0  # standard deviations of the target on each side of its mean that its public range has


@dataclass(frozen=True)
class SyntheticRegression:
    """A linear model with known coefficients, and as many records of it as are asked for.

    Feature j is uniform on ``[-s_j, s_j]``, where s falls from 1 to ``condition^(-1/2)`` in equal ratios; the public
    range of every feature is [-1, 1]. The target is 1 plus a linear function of variance 1 plus normal noise, so R^2 is
    at most ``1/(1 + noise^2)``.

    Parameters
    ----------
    records : int
        Number n of clients, at least 1.
    features : int
        Number d of features, 1 to 10,000.
    noise : float
        Standard deviation of the noise, at least 0.
    condition : float
        Largest over smallest eigenvalue of the features' covariance, at least 1; the directions of small ones are what
        a private regression finds hardest.
    seed : int
        Public seed of coefficients and records, at least 0.

    Raises
    ------
    ValueError
        If a number is outside its range.
    """

    records: int = 100_000
    features: int = 8
    noise: float = 0.5
    condition: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse numbers outside their ranges."""
        whole("records", self.records, minimum=1)
        if whole("features", self.features, minimum=1) > _MOST_FEATURES:
            raise ValueError(f"features = {self.features} is not allowed: give 1 to {_MOST_FEATURES}.")
        non_negative("noise", self.noise)
        if finite("condition", self.condition) < 1:
            raise ValueError(
                f"condition = {self.condition:g} is not allowed: give a finite number of at least 1."
            )
        whole("seed", self.seed, minimum=0)

    @property
    def spreads(self) -> NDArray[np.float64]:
        """The largest magnitude s_j of each feature, of shape (d,)."""
        return self.condition ** (-np.linspace(0.0, 0.5, self.features))

    @property
    def coefficients(self) -> NDArray[np.float64]:
        """The true slopes, then the intercept, of shape (d + 1,)."""
        shares = public_streams(self.seed).stream(f"{_NAME} coefficients").normal(self.features)
        shares /= np.linalg.norm(shares)  # of the standard deviation that a feature gives to the target
        return np.append(shares * np.sqrt(3.0) / self.spreads, _INTERCEPT)

    def rows(self, first: int, last: int, purpose: str = "records") -> RegressionRecords:
        """Make records first to last - 1, the same to the bit however they are asked for.

        Parameters
        ----------
        first, last : int
            At least 0.
        purpose : str
            What they are for; another purpose has other records.
        """
        count = last - first
        features = np.empty((count, self.features), dtype=np.float32)
        targets = np.empty(count)
        spreads, coefficients = self.spreads, self.coefficients
        streams = public_streams(self.seed)
        step = max(1, _CHUNK // (self.features + 1))
        for start in range(0, count, step):
            stop = min(start + step, count)
            words = streams.words_of(
                f"{_NAME} {purpose}",
                round=0,
                first=first + start,
                count=stop - start,
                words_each=self.features + 1,
            )
            features[start:stop] = (2.0 * uniforms_from(words[:, :-1]) - 1.0) * spreads
            made = self.noise * normals_from(words[:, -1]) + coefficients[-1]
            # feature by feature: a matrix product would round by how many records it is given
            for column, slope in zip(features[start:stop].T, coefficients[:-1], strict=True):
                made += slope * column
            targets[start:stop] = made
        return RegressionRecords(features, targets)

    def data(self, test_fraction: float = 0.2) -> RegressionData:
        """The data set of these records; its test set has records of its own.

        Parameters
        ----------
        test_fraction : float
            Size of the test set over the number of clients, in [0, 1); 0 gives none, and 10,000 records are the most.
        """
        if not 0.0 <= test_fraction < 1.0:
            raise ValueError(f"test-fraction must be at least 0 and less than 1, got {test_fraction}.")
        num_test = min(int(np.ceil(test_fraction * self.records)), _MOST_TEST)
        reach = _RANGE * float(np.sqrt(1.0 + self.noise**2))
        ones = np.ones(self.features)
        schema = RegressionSchema(
            names=tuple(f"x{index}" for index in range(self.features)),
            low=-ones,
            high=ones,
            baseline=0.0 * ones,
            target="y",
            target_low=_INTERCEPT - reach,
            target_high=_INTERCEPT + reach,
        )
        return RegressionData(
            _NAME,
            schema,
            self.records,
            rows_of(self.rows, self.records),
            self.rows(0, num_test, "test"),
            "features made within -1 and 1 and left as they are",
        )


def load(request: DataRequest) -> RegressionData:
    """Make the records that a configuration asks for; see :class:`SyntheticRegression`.

    The options are its parameters; ``seed`` is the request's public data seed where they have none.
    """
    request.allow(_NAME, "options", tasks=("regression",))
    known = tuple(SyntheticRegression.__dataclass_fields__)
    for key in request.options:
        if key not in known:
            raise ValueError(f"{_NAME} has no option {key!r}; nearest: {nearest(key, known)}.")
    return SyntheticRegression(**{"seed": request.seed, **request.options}).data(request.test_fraction)

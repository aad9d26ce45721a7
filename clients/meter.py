"""The meter of a contribution: utilities of coalitions of groups on one client's records, and their Shapley values."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedveil.clients.coalitions import AttributeGroups, Labelled
from fedveil.clients.contribution import mask_utilities, split_validation
from fedveil.clients.gradients import Arrays
from fedveil.clients.retraining import RecordGroups, retrain_utilities
from fedveil.clients.training import ClientData
from fedveil.datasets.groups import Groups
from fedveil.datasets.schema import Records, Schema
from fedveil.models import Learner
from fedveil.privacy import (
    MAX_EXACT,
    ContributionKind,
    contribution_rate,
    draw_permutations,
    sampled_shapley,
    shapley_values,
)
from fedveil.streams import Streams

__all__ = ["ContributionMeter", "Measured", "Method"]

Method = Literal["mask", "retrain"]


@dataclass(frozen=True, eq=False)
class Measured:
    """What a client has measured on its own records: as private as they are.

    Parameters
    ----------
    values : float64 array of shape (N,)
        Shapley values of the groups.
    errors : float64 array of shape (N,) or None
        Standard errors of the sampling of permutations; None where the values are exact.
    utilities : float64 array of shape (2^N,) or None
        Utility of every coalition; None where coalitions were sampled.
    names : tuple of str
        Names of the groups.
    rate : float
        R.
    kind : {"shapley", "utilities"}
        What is released of it.
    """

    values: NDArray[np.float64]
    errors: NDArray[np.float64] | None
    utilities: NDArray[np.float64] | None
    names: tuple[str, ...]
    rate: float
    kind: ContributionKind

    @property
    def vector(self) -> NDArray[np.float64]:
        """What a release adds noise to."""
        return self.values if self.kind == "shapley" or self.utilities is None else self.utilities

    def explain(self) -> str:
        """The measurement as JSON, for the client's own files."""
        return json.dumps(
            {
                "groups": list(self.names),
                "shapley": self.values.tolist(),
                "errors": None if self.errors is None else self.errors.tolist(),
                "utilities": None if self.utilities is None else self.utilities.tolist(),
                "contribution": self.rate,
            }
        )


@dataclass(frozen=True, eq=False)
class ContributionMeter:
    """How the clients of a run measure their contribution; every field is public.

    Parameters
    ----------
    learner : Learner
        The network, and the loss of retraining.
    groups : Groups
        The players.
    schema : Schema
        Where the groups, and the baseline of what is masked, come from.
    method : {"mask", "retrain"}
        Mask groups of attributes in the received model, or train an auxiliary model on every coalition.
    kind : {"shapley", "utilities"}
        What a release holds.
    fraction : float
        Share of a client's records that utilities are measured on, in (0, 1]; with ``retrain`` the others are trained
        on, so it must be below 1.
    pairs : int
        Antithetic pairs of permutations beyond 12 groups.
    streams : Streams
        Public: which records validate, which permutations are drawn.
    start : mapping of str to array, optional
        Where auxiliary models of attribute groups start; needed by ``retrain``.
    steps : int
        Gradient steps of an auxiliary model.
    learning_rate : float
        Their step size.
    """

    learner: Learner
    groups: Groups
    schema: Schema
    method: Method
    kind: ContributionKind
    fraction: float
    pairs: int
    streams: Streams
    start: Arrays | None = None
    steps: int = 20
    learning_rate: float = 1.0

    @property
    def sees_the_model(self) -> bool:
        """Whether the received model decides what is measured; if not, a client measures the same in every round."""
        return self.method == "mask" or self.groups.kind == "records"

    def measure(self, data: ClientData, arrays: Arrays) -> Measured:
        """Measure the contribution of the private groups on one client's records.

        Parameters
        ----------
        data : ClientData
            The client's records.
        arrays : mapping of str to array
            The received model: what is masked, and where retraining on groups of records starts.

        Returns
        -------
        Measured
            Nothing in it may leave the client without noise.

        Raises
        ------
        ValueError
            If there are no records to validate on or to train on.
        """
        stream = self.streams.stream("validation-records")
        training, validation = split_validation(len(data), self.fraction, stream)

        def utilities(coalitions: NDArray[np.int64] | None) -> NDArray[np.float64]:
            if self.method == "mask":
                return self._masked(data, arrays, validation, coalitions)
            return self._retrained(data, arrays, training, validation, coalitions)

        names = self.groups.names
        if len(names) <= MAX_EXACT:
            table = utilities(None)
            values, errors = shapley_values(table), None
        else:
            sampled = sampled_shapley(utilities, self._permutations)
            table, values, errors = None, sampled.values, sampled.standard_errors
        rate = contribution_rate(values, self.groups.private)
        return Measured(values, errors, table, names, rate, self.kind)

    def _masked(
        self,
        data: ClientData,
        arrays: Arrays,
        rows: NDArray[np.int64],
        coalitions: NDArray[np.int64] | None,
    ) -> NDArray[np.float64]:
        return mask_utilities(
            self.learner.module,
            arrays,
            data.features[rows].reshape(-1, *data.record_shape),
            data.labels[rows],
            self.groups.masks,
            self.schema.baseline,
            coalitions,
        )

    def _retrained(
        self,
        data: ClientData,
        arrays: Arrays,
        training: NDArray[np.int64],
        validation: NDArray[np.int64],
        coalitions: NDArray[np.int64] | None,
    ) -> NDArray[np.float64]:
        def part(rows: NDArray[np.int64]) -> Labelled:
            return Labelled(data.features[rows].reshape(-1, *data.record_shape), data.labels[rows])

        groups: AttributeGroups | RecordGroups
        if self.groups.kind == "records":
            owner = self.groups.owner(Records(data.features, data.labels), self.schema)[training]
            groups, start = RecordGroups(owner, len(self.groups.names)), arrays
        elif self.start is not None:
            groups, start = AttributeGroups(self.groups.masks, self.schema.baseline), self.start
        else:
            raise ValueError(
                "retraining on groups of attributes needs a start: give the meter the initial model."
            )
        return retrain_utilities(
            self.learner,
            start,
            part(training),
            part(validation),
            groups,
            steps=self.steps,
            learning_rate=self.learning_rate,
            coalitions=coalitions,
        )

    @cached_property
    def _permutations(self) -> NDArray[np.int64]:
        return draw_permutations(len(self.groups.names), self.pairs, self.streams.stream("permutations"))

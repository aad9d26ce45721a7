"""Moments of modulated messages: sums that add over nodes and rounds, and give unbiased moments of the records.

From K messages G (K, d) and labels y, with E over phases and noise (arXiv 2605.07233; THEORY 2),

    Sigma_hat = (G'G/K - M)/c^2,  E = X'X/K;      b_hat = G'y/(c K),  E = X'y/K

M the mean over messages of their `Correction`. With label privacy the label that arrives is c y/s + noise, so
b_hat = s G'y/(c^2 K). All of it depends on the messages only through sums, so nodes add them and secure aggregation
applies. Records here are the CLIPPED ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedveil.privacy.correction import Correction, merged
from fedveil.privacy.described import described, refuse_contradiction
from fedveil.privacy.directions import real_array
from fedveil.privacy.domain import finite, non_negative, positive, whole
from fedveil.privacy.modulation import Modulation, check_number
from fedveil.privacy.normal_equations import NormalEquations


class NotAdditive(ValueError):
    """Moments that tell of different things were added."""


@dataclass(frozen=True, eq=False)
class ModulatedMoments:
    """Sums over messages, and what is known of how the messages were made.

    Parameters
    ----------
    gram : float64 array of shape (d, d)
        G'G.
    cross : float64 array of shape (d,)
        G'y, y the labels as they arrived.
    total : float64 array of shape (d,)
        Sum of the messages.
    label_total, label_square : float
        Sums of y and y^2, y as they arrived.
    count : int
        Number of messages, K >= 1.
    scale : float, optional
        c = 1 - alpha; None when how the messages were made is told only to `debias`.
    corrections : tuple of Correction
        One for each kind of message; their counts add to K. Empty without `scale`.
    label_scale : float, optional
        s > 0 when labels arrived as c y/s with the noise of their message; None when they arrived as they are.

    Raises
    ------
    ValueError
        When shapes or counts do not fit or a number is outside its range.
    """

    gram: NDArray[np.float64]
    cross: NDArray[np.float64]
    total: NDArray[np.float64]
    label_total: float
    label_square: float
    count: int
    scale: float | None = None
    corrections: tuple[Correction, ...] = ()
    label_scale: float | None = None

    def __post_init__(self) -> None:
        """Check every field."""
        cross = real_array("cross moments", self.cross, shape=(None,))
        d = whole("number of features", len(cross), minimum=1)
        gram = real_array("gram moments", self.gram, shape=(d, d))
        if np.abs(gram - gram.T).max() > 1e-9 * np.abs(gram).max():
            raise ValueError("The gram moments are not symmetric: give G'G.")
        object.__setattr__(self, "gram", gram)
        object.__setattr__(self, "cross", cross)
        object.__setattr__(self, "total", real_array("totals", self.total, shape=(d,)))
        object.__setattr__(self, "label_total", finite("label_total", self.label_total))
        object.__setattr__(self, "label_square", non_negative("label_square", self.label_square))
        object.__setattr__(self, "count", whole("count", self.count, minimum=1))
        if self.label_scale is not None:
            object.__setattr__(self, "label_scale", positive("label_scale", self.label_scale))
        if self.scale is None:
            if self.corrections:
                raise ValueError("Moments with corrections have no scale: give c = 1 - alpha with them.")
            return
        if not self.scale:
            raise ValueError("scale = 0 is not allowed: such messages hold no record.")
        if any(one.dimension != d or one.intercept for one in self.corrections):
            raise ValueError(f"The directions of the corrections do not fit {d} features: give (m, {d}).")
        if sum(one.count for one in self.corrections) != self.count:
            raise ValueError(
                f"The counts of the corrections do not add to {self.count}, the number of messages."
            )

    @classmethod
    def from_messages(
        cls,
        messages: ArrayLike,
        labels: ArrayLike,
        *,
        modulation: Modulation | None = None,
        directions: ArrayLike | None = None,
        sigma: float | None = None,
        label_scale: float | None = None,
        corrections: Sequence[Correction] | None = None,
    ) -> ModulatedMoments:
        """Sum K messages.

        Parameters
        ----------
        messages : array of shape (K, d)
        labels : array of shape (K,)
            As they arrived.
        modulation, directions, sigma
            How all of them were made: constants, (m, d) directions (None only without a wave), and standard
            deviation >= 0 of the noise. Leave all out to tell `debias`.
        label_scale : float, optional
            s, when labels arrived as c y/s with noise; see the class.
        corrections : sequence of Correction, optional
            Instead of directions and sigma, for messages not all alike, for example averages of several rounds.

        Returns
        -------
        ModulatedMoments

        Raises
        ------
        ValueError
            When there is no message, or an argument is outside its range or does not fit.
        """
        rows = real_array("messages", messages, shape=(None, None))
        values = real_array("labels", labels, shape=(len(rows),))
        return cls.from_sums(
            rows.T @ rows,
            rows.T @ values,
            rows.sum(axis=0),
            float(values.sum()),
            float(values @ values),
            len(rows),
            modulation=modulation,
            directions=directions,
            sigma=sigma,
            label_scale=label_scale,
            corrections=corrections,
        )

    @classmethod
    def from_sums(
        cls,
        gram: ArrayLike,
        cross: ArrayLike,
        total: ArrayLike,
        label_total: float,
        label_square: float,
        count: int,
        *,
        modulation: Modulation | None = None,
        directions: ArrayLike | None = None,
        sigma: float | None = None,
        label_scale: float | None = None,
        corrections: Sequence[Correction] | None = None,
    ) -> ModulatedMoments:
        """Take sums that were made elsewhere; arguments as for the class and `from_messages`."""
        count = whole("count", count, minimum=1)
        cross = real_array("cross moments", cross, shape=(None,))
        plain = cls(
            np.asarray(gram),
            cross,
            np.asarray(total),
            label_total,
            label_square,
            count,
            label_scale=label_scale,
        )
        if modulation is None:
            if directions is not None or sigma is not None or corrections is not None:
                raise ValueError(
                    "directions, sigma or corrections were given without a modulation: give it too, or give "
                    "alpha, amplitude, directions and sigma to debias."
                )
            return plain
        if corrections is not None:
            if directions is not None or sigma is not None:
                raise ValueError("Corrections were given beside directions or sigma: give one or the other.")
            return replace(plain, scale=modulation.scale, corrections=merged(corrections))
        known = plain.described(
            directions, alpha=modulation.alpha, amplitude=modulation.amplitude, sigma=sigma
        )
        check_number(known.corrections[0].directions, modulation)
        return known

    def __add__(self, other: object) -> ModulatedMoments:
        """Moments of the messages of both.

        Raises
        ------
        NotAdditive
            When they differ in c, in label scale or in dimension, or only one says how its messages were made.
        """
        if not isinstance(other, ModulatedMoments):
            return NotImplemented
        for what, mine, theirs in (
            ("number of features", len(self.cross), len(other.cross)),
            ("c = 1 - alpha", self.scale, other.scale),
            ("label scale", self.label_scale, other.label_scale),
        ):
            if mine != theirs:
                raise NotAdditive(
                    f"Moments with {what} {mine} and {theirs} do not add: add those of messages made alike."
                )
        return ModulatedMoments(
            self.gram + other.gram,
            self.cross + other.cross,
            self.total + other.total,
            self.label_total + other.label_total,
            self.label_square + other.label_square,
            self.count + other.count,
            self.scale,
            merged(self.corrections + other.corrections),
            self.label_scale,
        )

    def debias(
        self,
        directions: ArrayLike | None = None,
        *,
        alpha: float | None = None,
        amplitude: float | None = None,
        sigma: float | None = None,
        label_scale: float | None = None,
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Unbiased second moments of the clipped records.

        Parameters
        ----------
        directions, alpha, amplitude, sigma, label_scale
            How the messages were made, as for `from_messages`. May be left out where the moments know; what
            is given must then agree.

        Returns
        -------
        covariance : float64 array of shape (d, d)
            Sigma_hat, symmetric, E = X'X/K; noise can make eigenvalues negative.
        cross : float64 array of shape (d,)
            b_hat, E = X'y/K.

        Raises
        ------
        ValueError
            When something is missing, contradicts what the moments know, or is outside its range.
        """
        known = self.described(
            directions, alpha=alpha, amplitude=amplitude, sigma=sigma, label_scale=label_scale
        )
        equations = known.normal_equations(intercept=False)
        return equations.covariance, equations.cross

    def described(
        self,
        directions: ArrayLike | None = None,
        *,
        alpha: float | None = None,
        amplitude: float | None = None,
        sigma: float | None = None,
        label_scale: float | None = None,
    ) -> ModulatedMoments:
        """Return these moments with what they know or are told of their messages; arguments as for `debias`."""
        if label_scale is not None and self.label_scale not in (None, label_scale):
            raise ValueError(
                f"label_scale = {label_scale!r} contradicts {self.label_scale!r} of these moments: leave it out."
            )
        label_scale = self.label_scale if label_scale is None else label_scale
        told: dict[str, Any] = {
            "directions": directions,
            "alpha": alpha,
            "amplitude": amplitude,
            "sigma": sigma,
        }
        if self.scale is not None:
            refuse_contradiction(self.scale, self.corrections, **told)
            return replace(self, label_scale=label_scale)
        scale, correction = described(self.count, len(self.cross), **told)
        return replace(self, scale=scale, corrections=(correction,), label_scale=label_scale)

    def normal_equations(self, intercept: bool = True) -> NormalEquations:
        """Least-squares equations of the clipped records, for moments that know how their messages were made.

        Parameters
        ----------
        intercept : bool
            Whether a constant coordinate 1, neither clipped nor noised, is placed last.

        Returns
        -------
        NormalEquations

        Raises
        ------
        ValueError
            When the moments do not know how their messages were made.
        """
        c, s, k = self.scale, self.label_scale, self.count
        if c is None:
            raise ValueError(
                "These moments do not know how their messages were made: make them with a modulation, or give "
                "alpha, amplitude, directions and sigma to debias."
            )
        noise = sum(one.count / k * one.covariance for one in self.corrections)
        # With label privacy y arrives as c y/s with its own noise of variance sigma^2.
        unit = 1.0 if s is None else s / c
        label_noise = 0.0 if s is None else sum(one.count / k * one.sigma**2 for one in self.corrections)
        equations = NormalEquations(
            covariance=(self.gram / k - noise) / c**2,
            cross=unit / (c * k) * self.cross,
            label_square=unit**2 * (self.label_square / k - label_noise),
            count=k,
            scale=c,
            corrections=self.corrections,
            label_scale=s,
        )
        if not intercept:
            return equations
        return equations.with_intercept(self.total / (c * k), unit * self.label_total / k)

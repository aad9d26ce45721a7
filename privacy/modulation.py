"""Modulation of one record: shrink it by c = 1 - alpha and add a bounded wave with a secret phase.

A client with record x in R^d, ||x|| <= B, m orthonormal directions v_j from the server, and secret phases
phi_j ~ U[0, 2 pi), independent over j, rounds and clients (arXiv 2605.07233; THEORY 2):

    g = c x + (lambda/sqrt m) sum_j cos(omega <x, v_j> + phi_j) v_j,   message = g + N(0, sigma^2 I)
"""

import math
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedveil.privacy.directions import check_directions, real_array
from fedveil.privacy.domain import finite, non_negative, one_of, positive, whole

SensitivityRule = Literal["exact", "paper"]


@dataclass(frozen=True, slots=True)
class Modulation:
    """Public constants of the modulation.

    Parameters
    ----------
    alpha : float
        Any finite number but 1; the record is multiplied by c = 1 - alpha. It is a unit: at equal privacy
        message/c has the same noise for every alpha.
    amplitude : float
        lambda >= 0 of the wave, shared evenly by the directions: lambda/sqrt(m) each; 0 for no wave.
    frequency : float
        omega >= 0. Since phases are uniform it changes neither the law of a message nor any estimate.
    num_directions : int
        m >= 1, and at most one less than there are features.

    Raises
    ------
    ValueError
        When a number is outside its range.
    """

    alpha: float = 0.3
    amplitude: float = 0.5
    frequency: float = 1.0
    num_directions: int = 1

    def __post_init__(self) -> None:
        """Check every field and store plain Python numbers."""
        scale_of(self.alpha)
        object.__setattr__(self, "alpha", float(self.alpha))
        for field in ("amplitude", "frequency"):
            object.__setattr__(self, field, non_negative(field, getattr(self, field)))
        object.__setattr__(self, "num_directions", whole("num_directions", self.num_directions, minimum=1))

    @property
    def scale(self) -> float:
        """Factor c = 1 - alpha of the record in its message."""
        return 1 - self.alpha


def scale_of(alpha: float) -> float:
    """Return c = 1 - alpha; refuse an alpha whose messages would hold nothing of the record."""
    scale = 1 - finite("alpha", alpha, allowed="a finite number other than 1")
    if scale == 0:
        raise ValueError(
            f"alpha = {alpha!r} is not allowed: the message would hold no record, so give any number but 1, "
            "for example 0.3."
        )
    return scale


def modulate(
    x: ArrayLike,
    directions: ArrayLike,
    *,
    alpha: float,
    amplitude: float,
    frequency: float,
    rng: np.random.Generator,
) -> NDArray[np.float64]:
    """Modulate records with fresh secret phases; neither clips nor adds the noise that makes them private.

    Parameters
    ----------
    x : array of shape (d,) or (n, d)
        One record, or one a row, already clipped.
    directions : array of shape (m, d)
        Orthonormal rows v_j; see `check_directions`.
    alpha, amplitude, frequency : float
        As for `Modulation`.
    rng : numpy Generator
        Source of the phases: as secret as the records.

    Returns
    -------
    float64 array of the shape of `x`
        Without noise: no privacy by itself.

    Raises
    ------
    ValueError
        When an argument is outside its range or a shape does not fit.
    """
    records = real_array("x", x)
    if records.ndim not in (1, 2) or records.shape[-1] == 0:
        raise ValueError(f"x has shape {records.shape}, which is not allowed: give (d,) or (n, d).")
    rows = np.atleast_2d(records)
    checked = check_directions(directions, rows.shape[1])
    modulation = Modulation(alpha, amplitude, frequency, max(1, len(checked)))
    # The exact law. For a FIXED x and any real s, s + phi mod 2 pi is uniform on the circle when phi is, so
    # A_j = cos(omega <x, v_j> + phi_j) has the arcsine law whatever x is, and the A_j are independent. The
    # message is thus distributed as c x + N(0, sigma^2 I), the Gaussian mechanism on c x, plus a random
    # vector (lambda/sqrt m) sum_j A_j v_j drawn without looking at x: post-processing. It costs D = 2 B |c|
    # for every lambda, omega and m. All this holds given the history, so also for directions that a server
    # chose adaptively or maliciously. It needs phases that are secret, uniform, and fresh for every message:
    # with a known or repeated phase the wave tells about x, and only the paper's bound is left.
    phases = rng.uniform(0.0, 2 * math.pi, size=(len(rows), len(checked)))
    return modulated(rows, checked, phases, modulation).reshape(records.shape)


def modulated(
    x: NDArray[np.floating],
    directions: NDArray[np.float64],
    phases: NDArray[np.float64],
    modulation: Modulation,
) -> NDArray[np.float64]:
    """Modulate records with given phases: what clients call, a chunk of records at a time.

    Parameters
    ----------
    x : array of shape (n, d)
        Clipped records.
    directions : float64 array of shape (m, d)
        As `check_directions` returns them; (0, d) for no wave.
    phases : array of shape (n, m)
        phi_j of each record, uniform on [0, 2 pi), secret and never used again.
    modulation : Modulation
        Its `num_directions` is m, unless its amplitude is 0.

    Returns
    -------
    float64 array of shape (n, d)
        Without noise: no privacy by itself.

    Raises
    ------
    ValueError
        When the shapes do not fit.
    """
    if (
        x.ndim != 2
        or directions.ndim != 2
        or x.shape[1] != directions.shape[1]
        or phases.shape != (len(x), len(directions))
    ):
        raise ValueError(
            f"x, directions and phases of shapes {x.shape}, {directions.shape} and {phases.shape} do not fit: "
            "give (n, d), (m, d) and (n, m)."
        )
    check_number(directions, modulation)
    message = np.multiply(x, modulation.scale, dtype=np.float64)
    if modulation.amplitude > 0 and len(directions):
        wave = x @ (modulation.frequency * directions).T
        wave += phases
        np.cos(wave, out=wave)
        columns = modulation.amplitude / math.sqrt(len(directions)) * directions
        # BLAS takes twice as long for one direction as the outer product does
        message += wave * columns if len(directions) == 1 else wave @ columns
    return message


def check_number(directions: NDArray[np.float64], modulation: Modulation) -> None:
    """Refuse directions that are not as many as the modulation says; without a wave there may be none."""
    if len(directions) != modulation.num_directions and not (modulation.amplitude == 0 == len(directions)):
        raise ValueError(
            f"{len(directions)} directions do not fit num_directions = {modulation.num_directions}: "
            "give as many as the modulation has."
        )


def modulation_sensitivity(
    bound: float,
    *,
    alpha: float,
    amplitude: float,
    frequency: float,
    num_directions: int,
    rule: SensitivityRule = "exact",
) -> float:
    """L2 sensitivity D of a modulated record, all features of which are replaced.

    Parameters
    ----------
    bound : float
        B > 0, L2 norm to which x is clipped; with label privacy the norm to which z = (x, y/s) is clipped.
    alpha, amplitude, frequency, num_directions
        As for `Modulation`.
    rule : {"exact", "paper"}
        ``exact``: D = 2 B |1 - alpha|, for phases that are secret, uniform and fresh (derived; see `modulate`).
        ``paper``: D = 2 B (|1 - alpha| + lambda omega/sqrt m), which holds for any phases, also known ones.

    Returns
    -------
    float
        D > 0. Relation: the private attributes (all features) of one record replaced, its label equal. With
        label privacy, where the message also holds c y/s, the same D under one record replaced: for ``exact``
        because c z is what the noise protects; for ``paper`` because, with n the noise-free message,
        ||n(z) - n(z')|| <= |c| ||z - z'|| + (lambda omega/sqrt m) ||x - x'||, and ||x - x'|| <= ||z - z'|| <= 2 B.

    Raises
    ------
    ValueError
        When an argument is outside its range.

    Notes
    -----
    For ``paper``: x -> sum_j cos(omega <x, v_j> + phi_j) v_j has Lipschitz constant omega, as cos has 1 and the
    v_j are orthonormal.
    """
    bound = positive("bound", bound)
    modulation = Modulation(alpha, amplitude, frequency, num_directions)
    one_of("rule", rule, get_args(SensitivityRule))
    slope = abs(modulation.scale)
    if rule == "paper":
        slope += modulation.amplitude * modulation.frequency / math.sqrt(modulation.num_directions)
    return positive("sensitivity", 2 * bound * slope)

"""Modulation directions: orthonormal rows, fewer than there are features, drawn orthogonal to the model.

With V the (m, d) matrix of the directions v_j as rows, V V' = I. At most d - 1 of them leave room for one
orthogonal to all, so that the slopes beta of the model, to which they are drawn orthogonal, fit beside them.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedveil.privacy.domain import whole

# Rows farther than this from orthonormal were not made by `draw_directions` in double precision.
_TOLERANCE = 1e-9


def check_directions(directions: ArrayLike, dimension: int) -> NDArray[np.float64]:
    """Return the directions as the rows of a float64 array, or say what is wrong with them.

    Parameters
    ----------
    directions : array of shape (m, d), (d, m) or (d,)
        m orthonormal directions v_j in R^d, 0 <= m <= d - 1; since m < d, the shape tells rows from columns.
        A single one may be a vector.
    dimension : int
        d >= 1, number of features, without the intercept.

    Returns
    -------
    float64 array of shape (m, d)

    Raises
    ------
    ValueError
        When the shape does not fit, m > d - 1, a number is not finite, or the rows are not orthonormal to 1e-9.
    """
    d = whole("dimension", dimension, minimum=1)
    rows = real_array("directions", directions)
    if rows.ndim == 1 and rows.shape == (d,):
        rows = rows[None, :]
    if rows.ndim != 2 or d not in rows.shape:
        raise ValueError(
            f"directions of shape {rows.shape} do not fit {d} features: give (m, {d}) with m at most {d - 1}."
        )
    if rows.shape[1] != d:
        rows = rows.T
    if len(rows) > d - 1:
        raise ValueError(
            f"{len(rows)} directions for {d} features are too many: give at most {d - 1} (features less one)."
        )
    error = float(np.abs(rows @ rows.T - np.eye(len(rows))).max(initial=0.0))
    if error > _TOLERANCE:
        raise ValueError(
            f"directions are {error:.3g} away from orthonormal: give unit vectors orthogonal to each other, "
            "for example from draw_directions."
        )
    return np.ascontiguousarray(rows)


def draw_directions(
    num_directions: int,
    dimension: int,
    normal: Callable[[tuple[int, ...]], ArrayLike],
    orthogonal_to: ArrayLike | None = None,
) -> NDArray[np.float64]:
    """Draw orthonormal directions uniformly among those orthogonal to a vector.

    Parameters
    ----------
    num_directions, dimension : int
        m in [0, d - 1] and d >= 1.
    normal : callable
        Gives standard normals of the shape it is called with; called once, with (m, d).
    orthogonal_to : array of shape (d,), optional
        Slopes beta to which every direction is orthogonal; None or 0 for any directions.

    Returns
    -------
    float64 array of shape (m, d)

    Raises
    ------
    ValueError
        When m > d - 1, a shape does not fit, or the normals are not finite or not independent.
    """
    d = whole("dimension", dimension, minimum=1)
    m = whole("num_directions", num_directions, minimum=0)
    if m > d - 1:
        raise ValueError(
            f"num_directions = {m} is not allowed for {d} features: give at most {d - 1} (features less one)."
        )
    if m == 0:
        return np.zeros((0, d))
    draws = real_array("normals", normal((m, d)), shape=(m, d))
    basis = draws.T
    if orthogonal_to is not None:
        beta = real_array("orthogonal_to", orthogonal_to, shape=(d,))
        largest = float(np.abs(beta).max())
        if largest > 0:  # scaled first: the squares of tiny or huge slopes would vanish or overflow
            basis = np.column_stack([beta / largest, basis])
    # The first column spans beta, so the others are an orthonormal basis of directions orthogonal to it.
    q, r = np.linalg.qr(basis)
    if np.abs(np.diag(r)).min() < 1e-12 * np.abs(r).max():
        raise ValueError("The normals for the directions are not independent: give fresh standard normals.")
    # The signs of the diagonal make the law uniform (Mezzadri 2007): LAPACK's own signs are not.
    return np.ascontiguousarray((q * np.sign(np.diag(r))).T[-m:])


def real_array(
    name: str, values: ArrayLike, *, shape: tuple[int | None, ...] | None = None
) -> NDArray[np.float64]:
    """Return `values` as a float64 array of finite numbers; None in `shape` stands for any length."""
    array = np.asarray(values)
    if array.dtype.kind not in "fiu":
        raise ValueError(f"{name} have type {array.dtype}, which is not allowed: give real numbers.")
    array = array.astype(np.float64, copy=False)
    if shape is not None and (
        array.ndim != len(shape)
        or any(want not in (None, got) for want, got in zip(shape, array.shape, strict=True))
    ):
        wanted = ", ".join("any" if length is None else str(length) for length in shape)
        raise ValueError(
            f"{name} have shape {array.shape}, which is not allowed: give an array of shape ({wanted})."
        )
    if not np.isfinite(array).all():
        raise ValueError(f"{name} hold NaN or infinity, which is not allowed: give finite numbers.")
    return array

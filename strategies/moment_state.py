"""Moments as plain arrays and back, every bit kept: what a checkpoint holds of them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from fedveil.privacy import Correction, ModulatedMoments

__all__ = ["moments_from_state", "moments_to_state", "prefixed", "without"]

State = dict[str, NDArray[np.generic]]


def moments_to_state(moments: ModulatedMoments) -> State:
    """Arrays by name.

    Parameters
    ----------
    moments : ModulatedMoments
        They know how their messages were made.
    """
    corrections = moments.corrections
    scales = [moments.scale, moments.label_scale]
    return {
        "gram": moments.gram,
        "cross": moments.cross,
        "total": moments.total,
        "labels": np.array([moments.label_total, moments.label_square]),
        "count": np.array([moments.count], np.int64),
        "scales": np.array([np.nan if scale is None else scale for scale in scales]),
        "correction-counts": np.array([one.count for one in corrections], np.int64),
        "correction-sizes": np.array([len(one.directions) for one in corrections], np.int64),
        "correction-noise": np.array([[one.sigma, one.amplitude] for one in corrections]),
        "correction-directions": np.concatenate([one.directions for one in corrections]),
    }


def moments_from_state(state: Mapping[str, NDArray[np.generic]]) -> ModulatedMoments:
    """The moments of :func:`moments_to_state`."""
    floats = {name: np.asarray(state[name], np.float64) for name in state}
    scale, label_scale = (None if np.isnan(value) else float(value) for value in floats["scales"])
    ends = np.cumsum(state["correction-sizes"])[:-1]
    directions = np.split(floats["correction-directions"], ends)
    corrections = tuple(
        Correction(int(count), float(sigma), float(amplitude), rows)
        for count, (sigma, amplitude), rows in zip(
            state["correction-counts"], floats["correction-noise"], directions, strict=True
        )
    )
    labels = floats["labels"]
    return ModulatedMoments(
        floats["gram"],
        floats["cross"],
        floats["total"],
        float(labels[0]),
        float(labels[1]),
        int(state["count"][0]),
        scale,
        corrections,
        label_scale,
    )


def prefixed(prefix: str, state: Mapping[str, NDArray[np.generic]]) -> State:
    """The arrays under names that begin with this prefix."""
    return {f"{prefix}{name}": value for name, value in state.items()}


def without(prefix: str, state: Mapping[str, NDArray[np.generic]]) -> State:
    """The arrays whose names begin with this prefix, under their own names."""
    return {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}

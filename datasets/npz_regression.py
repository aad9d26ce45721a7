"""A user's own NPZ file for regression: every row of its arrays is the one record of a client."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedveil.datasets.arrays import column_names, read_array_description
from fedveil.datasets.files import Files
from fedveil.datasets.images import pixel_names
from fedveil.datasets.npz_arrays import (
    check_finite,
    check_length,
    check_like,
    choose_arrays,
    read_array,
    read_features,
)
from fedveil.datasets.regression import RegressionData, RegressionRecords, RegressionSchema
from fedveil.datasets.regression_table import parted

__all__ = ["load_npz_regression"]


def load_npz_regression(
    path: str | Path,
    target: str | None = None,
    schema_path: str | Path | None = None,
    test_fraction: float = 0.2,
    seed: int = 0,
    test_path: str | Path | None = None,
) -> RegressionData:
    """Load an NPZ file for regression.

    Parameters
    ----------
    path, schema_path, test_fraction, seed, test_path
        As for :func:`fedveil.datasets.npz.load_npz`.
    target : str, optional
        The array to predict, of n numbers; what the schema file says when not given. Its public range is in the schema
        file's ``[targets]``, where the privacy of labels needs one.

    Returns
    -------
    RegressionData
        Features named ``<array><index>``, or by pixel for images. A client array of the schema file is not used, since
        every record is a client of its own.

    Raises
    ------
    ValueError
        If a file is missing or damaged, an array is missing, pickled, of another length or type, or a number is not
        finite.
    """
    files = Files.of(path, schema_path, test_path)
    source = files.records
    description = read_array_description(files.schema, is_needed=schema_path is not None)
    features, target, _ = choose_arrays(source, description, target, None)
    values = read_features(source, description, features)
    shape = values.shape[1:]
    is_image = len(shape) == 3
    names, sources = pixel_names(shape) if is_image else (column_names(features, shape[0]), ())
    low, high, center = description.targets.get(target, (None, None, None))
    schema = RegressionSchema(
        names, *description.bounds_of(features, values, target), target, low, high, sources, center
    )
    records = RegressionRecords(
        schema.standardise(values.reshape(len(values), -1)), _numbers(source, target, features, len(values))
    )
    test = None
    if files.test is not None:
        tested = read_features(files.test, description, features)
        check_like(files.test, tested, source, values, features)
        test = RegressionRecords(
            schema.standardise(tested.reshape(len(tested), -1)),
            _numbers(files.test, target, features, len(tested)),
        )
    low, high = float(schema.low.min()), float(schema.high.max())
    scaled = (
        f"public range {low:g} to {high:g}: numbers clipped to it, less the baseline, divided by half the width; a"
        " range of 0 to 1 as it is"
    )
    return parted(source.stem, schema, records, test, test_fraction, seed, scaled)


def _numbers(source: Path, target: str, features: str, count: int) -> NDArray[np.float64]:
    """Read the array to predict: one finite number for each record."""
    where = f"{source}, array {target!r}"
    values = read_array(source, target, "target", "biuf", "numbers")
    check_length(source, target, values, features, count)
    check_finite(values, where, "correct it")
    return values.astype(np.float64)

"""Images as records: one feature a pixel and channel, scaled by one public range."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedveil.datasets.schema import Schema

__all__ = ["as_pixels", "image_schema", "pixel_names", "scale_rows"]

_BLOCK = 1 << 22  # values scaled at a time: scaling works in float64


def pixel_names(shape: tuple[int, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Name the features of images of one size, and for each the pixel that it comes from.

    ``r<row>c<column>`` (one channel) or ``r<row>c<column>k<channel>``, channel by channel, rows from the top.

    Parameters
    ----------
    shape : tuple of int
        Channels, rows and columns.
    """
    channels, rows, columns = shape
    pixels = tuple(f"r{row}c{column}" for row in range(rows) for column in range(columns))
    if channels == 1:
        return pixels, pixels
    return tuple(f"{pixel}k{k}" for k in range(channels) for pixel in pixels), pixels * channels


def image_schema(
    shape: tuple[int, int, int],
    target: str,
    classes: tuple[str, ...],
    low: float = 0.0,
    high: float = 255.0,
    baseline: float = 0.0,
    client_column: str | None = None,
) -> Schema:
    """Describe images of one size.

    Parameters
    ----------
    shape : tuple of int
        Channels, rows and columns.
    target : str
        What is to be predicted.
    classes : tuple of str
        Its classes.
    low, high : float
        Public range of every pixel; 0 to 255 for bytes.
    baseline : float
        Public value of a private pixel, in the pixels' units.
    client_column : str, optional
        What says whose an image is.

    Returns
    -------
    Schema
        Features as :func:`pixel_names` names them. The pixel's name without its channel stands for all its channels.

    Raises
    ------
    ValueError
        If the range is empty, or the baseline is outside it.
    """
    names, pixels = pixel_names(shape)
    count = len(names)
    return Schema(
        names=names,
        shape=shape,
        low=np.full(count, low, dtype=np.float32),
        high=np.full(count, high, dtype=np.float32),
        baseline=np.full(count, (baseline - low) / (high - low), dtype=np.float32),
        target=target,
        classes=classes,
        sources=pixels,
        client_column=client_column,
    )


def scale_rows(schema: Schema, values: NDArray[Any]) -> NDArray[np.float32]:
    """Scale records as :meth:`Schema.scale` does, some at a time, so that bytes need four bytes and no more.

    Parameters
    ----------
    schema : Schema
        Public description of a record.
    values : array of shape (n, ...)
        One record's p features in each row, in any shape, in their own units.

    Returns
    -------
    float32 array of shape (n, p)
    """
    scaled = np.empty((len(values), schema.num_features), dtype=np.float32)
    step = max(1, _BLOCK // schema.num_features)
    for start in range(0, len(values), step):
        part = np.reshape(values[start : start + step], (-1, schema.num_features))
        scaled[start : start + step] = schema.scale(part)
    return scaled


def as_pixels(image: Any, channels: int) -> NDArray[np.uint8]:
    """Turn a Pillow image into bytes of shape (channels, rows, columns): 1 is grey, 3 is red, green, blue.

    Transparency is dropped, a palette is looked up, and colours become grey by their luma.

    Raises
    ------
    ValueError
        If a pixel has more than 8 bits a channel, which Pillow would cut off.
    OSError
        If the image's bytes are damaged.
    """
    if image.mode.startswith(("I", "F")):
        raise ValueError("it has more than 8 bits a channel")
    pixels = np.asarray(image.convert("L" if channels == 1 else "RGB"))
    return pixels[np.newaxis] if channels == 1 else np.moveaxis(pixels, -1, 0)

"""Sizes of a quantized network: every scheme's file beside float32, and beside the bits that it needs in theory.

The network is `cnn` at the start of training, for 62 classes of 28 x 28 pixels; sizes do not depend on the weights.

    python benchmarks/quantized_sizes.py [--page docs/quantization.md]
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from trials import table, write_section

from fedveil.models import cnn, initial_arrays
from fedveil.quantization import SCHEMES, encode_model, pack, quantize_model, theoretical_bits
from fedveil.streams import Streams

INPUT_SHAPE, NUM_CLASSES = (1, 28, 28), 62
GRANULAR = ("sign/channel", "ternary-90/group-64", "int4/channel", "int4/group-64", "uint4/group-64")
LARGEST_EXCESS = 0.02  # of the file over theory, its header left out


@dataclass(frozen=True)
class Size:
    """Bytes of a model in one scheme.

    Parameters
    ----------
    float_weights, packed : int
        The quantized weights as float32, and their packed codes.
    theory : float
        The whole model in theory.
    header, file : int
        Names, shapes and the description; the whole file with them.
    error : float
        Root mean square of what quantization changed, over the root mean square of the weights.
    """

    float_weights: int
    packed: int
    theory: float
    header: int
    file: int
    error: float

    @property
    def excess(self) -> float:
        """Share by which the file without its header is above theory."""
        return (self.file - self.header) / self.theory - 1


def network() -> dict[str, NDArray[np.float32]]:
    return initial_arrays(cnn(INPUT_SHAPE, NUM_CLASSES), Streams.seeded("", 0).stream("initial-model"))


def size_of(arrays: dict[str, NDArray[np.float32]], scheme: str) -> Size:
    model = quantize_model(arrays, scheme)
    data = encode_model(model)
    decoded = model.arrays()
    errors = sum(float(((decoded[name] - arrays[name]).astype(float) ** 2).sum()) for name in model.codes)
    weights = sum(float((arrays[name].astype(float) ** 2).sum()) for name in model.codes)
    return Size(
        float_weights=sum(arrays[name].nbytes for name in model.codes),
        packed=sum(pack(codes, scheme).nbytes for codes in model.codes.values()),
        theory=theoretical_bits(arrays, scheme) / 8,
        header=8 + int.from_bytes(data[:8], "little"),
        file=len(data),
        error=(errors / weights) ** 0.5,
    )


def line(scheme: str, size: Size) -> list[str]:
    return [
        f"`{scheme}`",
        f"{8 * size.packed / (size.float_weights / 4):.3f}",
        f"{size.float_weights / size.packed:.2f}",
        f"{size.file:,}",
        f"{100 * size.excess:.2f} %",
        f"{size.header:,}",
        f"{size.error:.2f}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--page", type=Path, help="page of documentation whose section is replaced")
    page = parser.parse_args().page
    arrays = network()
    total = sum(array.nbytes for array in arrays.values())
    sizes = {scheme: size_of(arrays, scheme) for scheme in (*SCHEMES, *GRANULAR)}
    header = (
        "scheme",
        "bits a weight",
        "times smaller",
        "file, bytes",
        "above theory",
        "header, bytes",
        "error",
    )
    text = (
        f"`cnn` for {NUM_CLASSES} classes, {total // 4:,} parameters, {total:,} bytes as float32. *Times smaller*: "
        "packed codes\nagainst float32, quantized weights only. *Above theory*: the file without its header, with "
        "scales and biases, over the\nbits it needs in theory. *Error*: root mean square of the change over that of "
        "the weights, at the start of training\n(uniform weights).\n\n"
        + table(header, [line(scheme, size) for scheme, size in sizes.items()])
    )
    print(text)
    if page is not None:
        write_section(page, "quantized_sizes", text)
    too_large = [scheme for scheme, size in sizes.items() if size.excess > LARGEST_EXCESS]
    if too_large:
        raise SystemExit(f"Files of {', '.join(too_large)} are more than {LARGEST_EXCESS:.0%} above theory.")


if __name__ == "__main__":
    main()
